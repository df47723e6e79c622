"""Leaves zeros in the null block once graphs are captured.

Block 0 of the KV cache stands for "no block": evicted and padded entries of block tables name it, and kernels may read
it behind a mask. Warm-up and capture run on made-up batches whose slots may fall into it, and not every attention
kernel masks before it multiplies, so a NaN that is left there reaches answers (vllm-project/vllm#57156, open). vLLM
clears it after its own warm-up, not after capture, and only for caches that it zeroes anyway.
"""

from __future__ import annotations

from typing import Any

import torch

from . import step_hook

_BLOCK = 0


def attach(worker: type) -> None:
    """Have the null block cleared when a worker has warmed up and captured.

    Raises:
        UnsupportedError: the worker has no ``compile_or_warm_up_model``.
    """
    step_hook.after(worker, "compile_or_warm_up_model", clear)


@torch.inference_mode()  # the caches may have been made in it
def clear(worker: Any) -> None:
    """Zero block 0 of every KV cache tensor of a vLLM worker.

    vLLM's own zeroer knows every page, those of packed layouts too, but may not be there or leave a kind of cache out;
    so what each layer sees as its first block is zeroed as well.
    """
    runner = worker.model_runner
    if runner.kv_block_zeroer is not None:
        runner.kv_block_zeroer.zero_block_ids([_BLOCK])
    blocks = worker.cache_config.num_gpu_blocks
    for layer in worker.vllm_config.compilation_config.static_forward_context.values():
        for cache in tensors(getattr(layer, "kv_cache", None)):
            # A block of the cache's may be several of the kernel's; where layers share a page, a layer's view spans
            # those of the others and is no such multiple.
            count, rest = divmod(cache.shape[0], blocks) if blocks else (1, 0)
            cache[: max(1, count) if rest == 0 else 1].zero_()


def tensors(cache: Any) -> list[torch.Tensor]:
    """The tensors of a layer's ``kv_cache``: one, several, or none."""
    if isinstance(cache, torch.Tensor):
        return [cache] if cache.numel() else []
    return [tensor for part in cache for tensor in tensors(part)] if isinstance(cache, list | tuple) else []
