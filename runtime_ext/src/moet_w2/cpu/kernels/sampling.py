"""Sampling: temperature, Gumbel-max argmax, log-probabilities and ranks.

The noise is the kernel's own counter-based hash, so a seed gives the same tokens on either path. Integers are bitwise
equal to the kernels; log-probabilities differ by the order of summation only (a few float32 units in the last place).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .launch import Grid
from .views import flat

_DRAFT_SALT = 1 << 30
"""Keeps a draft's noise apart from its verification's; the same constant as in vLLM's kernel."""


def temperature(
    grid: Grid,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    temperature_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> Any:
    """Divide each row by its request's temperature, in place; 0 and 1 leave the row alone."""
    for row, request in enumerate(expanded_idx_mapping_ptr.tolist()[: grid[0]]):
        value = float(temperature_ptr[request])
        if value not in (0.0, 1.0):
            logits = logits_ptr[row, :vocab_size]
            logits.copy_(logits.float() / value)


def gumbel_argmax(
    grid: Grid,
    local_argmax_ptr: torch.Tensor,
    local_argmax_stride: int,
    local_max_ptr: torch.Tensor,
    local_max_stride: int,
    logits_cache_ptr: torch.Tensor | None,
    logits_cache_stride_0: int,
    logits_cache_stride_1: int,
    logits_cache_col_ptr: torch.Tensor | None,
    logits_cache_source_ptr: torch.Tensor | None,
    logits_cache_source_stride: int,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping_ptr: torch.Tensor,
    seeds_ptr: torch.Tensor,
    pos_ptr: torch.Tensor,
    temp_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    IS_DRAFTING: bool,
    APPLY_TEMPERATURE: bool,
    USE_FP64: bool,
    PER_TOKEN_COL: bool,
) -> Any:
    """Greedy or Gumbel-max choice within every block of ``BLOCK_SIZE`` logits: its index and its value, float32."""
    if logits_cache_ptr is not None or USE_FP64:
        return NotImplemented
    requests = expanded_idx_mapping_ptr.tolist()
    for row in range(grid[0]):
        request = requests[row]
        scores = logits_ptr[row, :vocab_size].float().numpy()
        heat = np.float32(temp_ptr[request]) if request >= 0 else np.float32(0)
        if heat != 0:
            if APPLY_TEMPERATURE:
                scores = scores / heat
            seed = int(seeds_ptr[request])
            pos = int(pos_ptr[row]) + (_DRAFT_SALT if IS_DRAFTING else 0)
            scores = scores + _gumbel(seed, pos, vocab_size)
        for block in range(grid[1]):
            part = scores[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
            best = int(part.argmax())
            local_argmax_ptr[row, block] = block * BLOCK_SIZE + best
            local_max_ptr[row, block] = float(part[best])


def topk_log_softmax(
    grid: Grid,
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    topk_ids_ptr: torch.Tensor,
    topk_ids_stride: int,
    topk: int,
    vocab_size: int,
    BLOCK_SIZE: int,
    TOPK_BLOCK_SIZE: int,
) -> Any:
    """Log-probability of the listed tokens of every row, float32."""
    logits = logits_ptr[: grid[0], :vocab_size].float()
    chosen = logits.gather(1, topk_ids_ptr[: grid[0], :topk])
    output_ptr[: grid[0], :topk] = chosen - logits.logsumexp(1, keepdim=True)


def ranks(
    grid: Grid,
    output_ptr: torch.Tensor,
    logits_ptr: torch.Tensor,
    logits_stride: int,
    token_ids_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> Any:
    """Number of tokens at least as likely as the given one, itself included."""
    logits = logits_ptr[: grid[0], :vocab_size]
    chosen = logits.gather(1, token_ids_ptr[: grid[0], None].long())
    flat(output_ptr)[: grid[0]] = (logits >= chosen).sum(1).numpy()


def _gumbel(seed: int, pos: int, count: int) -> NDArray[np.float32]:
    """Gumbel noise of tokens 0..count-1 at one position of one request's stream, float32."""
    bits = _hash32(seed, pos, np.arange(count, dtype=np.uint32))
    high = (bits >> np.uint32(16)).astype(np.float32)
    low = (bits & np.uint32(0xFFFF)).astype(np.float32)
    uniform = high * np.float32(1.52587890625e-05) + (low + np.float32(0.5)) * np.float32(2.3283064365386963e-10)
    return -np.log(-_log1p_negative(uniform))


def _hash32(seed: int, pos: int, offset: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3 of (seed low, seed high, position, offset), one 32-bit word per offset."""
    state = np.zeros(1, dtype=np.uint32)
    for word in (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, pos & 0xFFFFFFFF):
        state = _mix(state, np.array([word], dtype=np.uint32))
    state = _mix(state, offset) ^ np.uint32(16)
    state = state ^ (state >> np.uint32(16))
    state = state * np.uint32(0x85EBCA6B)
    state = state ^ (state >> np.uint32(13))
    state = state * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def _mix(state: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    key = _rotate(key * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotate(state ^ key, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotate(value: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def _log1p_negative(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 - value): a series where value < 0.25, so that the tail which wins the argmax keeps its precision."""
    series = np.float32(1 / 8)
    for term in range(7, 0, -1):
        series = np.float32(1 / term) + value * series
    direct = np.log(np.maximum(np.float32(1) - value, np.float32(5.960464477539063e-08)))
    return np.where(value < np.float32(0.25), -value * series, direct)
