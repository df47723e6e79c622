"""How many slots ``VLLM_MOE_W2_DELTA_GB=auto`` is: what vLLM's share of the memory leaves once the KV cache stands.

vLLM loads the model, gives the KV cache its memory, warms up, and captures graphs, in this order. The pool is
allocated after the KV cache, so that a KV cache of the wanted size is never made smaller, and before anything that
reads the pool is captured.

    share         gpu-memory-utilization x the device's memory (on a CPU, of the memory node)
    less          what is spent at that moment; what the steps need at their peak; what graphs will need

A KV cache that is sized by gpu-memory-utilization takes all of the share. So ``auto`` only finds room beside one of a
given size (kv-cache-memory-bytes, on a CPU VLLM_CPU_KVCACHE_SPACE), and says so where it finds none.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..errors import ConfigError

RESERVE = 1 << 30
"""Bytes left for graphs and workspaces where vLLM has not measured them: beside a KV cache of a given size."""


def slots(worker: Any, device: torch.device, row_bytes: int, most: int) -> int:
    """Slots that fit now.

    Args:
        worker: vLLM's worker, its KV cache allocated, nothing captured yet.
        device: where the pool will lie.
        row_bytes: bytes of a slot.
        most: experts that may take one.

    Raises:
        ConfigError: not one slot fits.
    """
    room = _cuda_room(worker, device) if device.type == "cuda" else _host_room(worker)
    fit = min(most, max(0, room) // row_bytes)
    if not fit:
        raise ConfigError(
            f"VLLM_MOE_W2_DELTA_GB=auto finds no room beside the KV cache ({room:,} bytes left of "
            "--gpu-memory-utilization); give the KV cache a size with --kv-cache-memory-bytes, or name GiB"
        )
    return fit


def _cuda_room(worker: Any, device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0]
    spent = worker.init_snapshot.free_memory - free
    stats = torch.cuda.memory_stats(device)
    # Blocks that torch has given back since its peak will be asked for again by the largest step.
    regrowth = stats["reserved_bytes.all.peak"] - stats["reserved_bytes.all.current"]
    measured = getattr(worker, "peak_activation_memory", None)
    # Graphs come on top of what steps need again.
    return int(worker.requested_memory - spent - (regrowth + RESERVE if measured is None else measured))


def _host_room(worker: Any) -> int:
    import psutil

    memory = psutil.virtual_memory()
    share = math.ceil(memory.total * worker.cache_config.gpu_memory_utilization)
    kv_cache = worker.cache_config.kv_cache_memory_bytes or 0  # allocated, but its pages are not touched yet
    return min(share - psutil.Process().memory_info().rss, memory.available) - kv_cache
