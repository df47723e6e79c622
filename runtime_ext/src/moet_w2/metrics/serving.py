"""What vLLM decided for a server, read from its worker once it could serve: the audit's ``serving``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig

from ..cache import phases
from ..kernels import cubins


def describe(
    worker: Any, vllm_config: VllmConfig, profile: str | None, device: torch.device, block_size: int | None
) -> dict[str, Any]:
    """The facts, less ``problems``.

    Args:
        worker: vLLM's worker, warmed up, its graphs captured.
        vllm_config: its configuration; vLLM has written what it resolved into it.
        profile: name of what is served, or None.
        device: what computes.
        block_size: of the KV cache, as configured: where the engine's core shares the worker's process, it has put
            the smallest one of all kinds of cache in its place by now.
    """
    model, cache, scheduler = vllm_config.model_config, vllm_config.cache_config, vllm_config.scheduler_config
    start = phases.of_process()
    return {
        "profile": profile,
        "max_model_len": model.max_model_len,
        "kv_cache_tokens": kv_cache_tokens(worker, vllm_config),
        "kv_cache_dtype": str(cache.cache_dtype),
        "block_size": block_size,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "prefix_caching": bool(cache.enable_prefix_caching),
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "speculative": _speculative(vllm_config),
        "graph_mode": _graph_mode(worker, vllm_config),
        "attention_backends": _attention_backends(worker),
        "expert_kernels": expert_kernels(device),
        "seconds": {name: start.seconds.get(name) for name in phases.NAMES},
        "seconds_since_process_start": phases.since_process_start(),
    }


def kv_cache_tokens(worker: Any, vllm_config: VllmConfig) -> int | None:
    """Tokens that the KV cache holds, by the functions that vLLM's log line "KV cache size" comes from.

    The engine's process counts over a configuration that it makes of all workers' ones; they differ in the names of
    layers only, so one is enough. None for a model without a KV cache.
    """
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_kv_cache_capacity

    config = getattr(worker.model_runner, "kv_cache_config", None)
    if config is None or not config.kv_cache_groups:
        return None
    tokens, _ = get_kv_cache_capacity(vllm_config, generate_scheduler_kv_cache_config([config]))
    return tokens


def expert_kernels(device: torch.device, folder: Path = cubins.PREBUILT) -> str:
    """What computes routed experts: the cubins' architecture on a GPU."""
    if device.type != "cuda":
        return "torch reference"
    built = [path.name for path in (folder / "cubins").iterdir() if (path / "decode.cubin").exists()]
    return f"cubins {cubins.architecture(torch.cuda.get_device_capability(device), built)}"


def _speculative(vllm_config: VllmConfig) -> dict[str, Any] | None:
    speculative = vllm_config.speculative_config
    if speculative is None:
        return None
    return {"method": str(speculative.method), "tokens": speculative.num_speculative_tokens}


def _graph_mode(worker: Any, vllm_config: VllmConfig) -> str:
    """The mode that graphs were captured in: what the runner resolved, not what was asked for."""
    manager = getattr(worker.model_runner, "cudagraph_manager", None)
    mode = vllm_config.compilation_config.cudagraph_mode if manager is None else manager.cudagraph_mode
    return "NONE" if mode is None else mode.name


def _attention_backends(worker: Any) -> list[str]:
    runner = worker.model_runner
    groups = [*getattr(runner, "attn_groups", []), *getattr(getattr(runner, "speculator", None), "attn_groups", [])]
    return sorted({_name(group.backend) for part in groups for group in part})


def _name(backend: Any) -> str:
    try:
        return backend.get_name()
    except (AttributeError, NotImplementedError):  # a name that is missing must not end a start
        return backend.__name__
