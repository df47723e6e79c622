"""The compressor: per-token states, and one compressed key for each full window of them."""

from __future__ import annotations

import torch

from .cache import NOPE, ROPE, rotate, write_keys, write_tokens


def save_states(
    kv: torch.Tensor,
    score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store [values | scores + positional bias] of each token in ``state_cache`` [blocks, size, 2W]; slots < 0 skip."""
    keep = (slot_mapping >= 0).nonzero().squeeze(1)
    slots, size = slot_mapping[keep], state_cache.shape[1]
    biased = score[keep] + ape[positions[keep] % ape.shape[0]]
    state_cache[slots // size, slots % size] = torch.cat((kv[keep], biased), dim=1)


def compress_store(
    state_cache: torch.Tensor,
    gather_slots: torch.Tensor,
    positions: torch.Tensor,
    kv_slot_mapping: torch.Tensor,
    rms_norm_weight: torch.Tensor,
    rms_norm_eps: float,
    cos_sin_cache: torch.Tensor,
    kv_cache_2d: torch.Tensor,
    kv_cache_block_size: int,
    compress_ratio: int,
) -> None:
    """Compressed attention keys (512 wide) of the tokens that complete a window, into the attention cache."""
    done = _completing(positions, kv_slot_mapping, compress_ratio)
    if not len(done):
        return
    x = _pool(state_cache, gather_slots[done], rms_norm_weight, rms_norm_eps, compress_ratio)
    angles = cos_sin_cache[positions[done] // compress_ratio * compress_ratio]
    nope = x[:, :NOPE].bfloat16().float()
    write_tokens(kv_cache_2d, kv_slot_mapping[done], nope, rotate(x[:, NOPE:], angles), kv_cache_block_size)


def compress_store_indexer(
    state_cache: torch.Tensor,
    gather_slots: torch.Tensor,
    positions: torch.Tensor,
    kv_slot_mapping: torch.Tensor,
    rms_norm_weight: torch.Tensor,
    rms_norm_eps: float,
    cos_sin_cache: torch.Tensor,
    kv_cache_2d: torch.Tensor,
    kv_cache_block_size: int,
    compress_ratio: int,
) -> None:
    """Compressed indexer keys (128 wide, all quantised) of the tokens that complete a window."""
    done = _completing(positions, kv_slot_mapping, compress_ratio)
    if not len(done):
        return
    x = _pool(state_cache, gather_slots[done], rms_norm_weight, rms_norm_eps, compress_ratio)
    angles = cos_sin_cache[positions[done] // compress_ratio * compress_ratio]
    keys = torch.cat((x[:, :-ROPE], rotate(x[:, -ROPE:], angles)), dim=1)
    write_keys(kv_cache_2d, kv_slot_mapping[done], keys.bfloat16().float(), kv_cache_block_size)


def _completing(positions: torch.Tensor, slots: torch.Tensor, ratio: int) -> torch.Tensor:
    """Indices of the tokens that complete a window and have a slot to store it in."""
    return (((positions + 1) % ratio == 0) & (slots >= 0)).nonzero().squeeze(1)


def _pool(state_cache: torch.Tensor, slots: torch.Tensor, weight: torch.Tensor, eps: float, ratio: int) -> torch.Tensor:
    """Softmax-pooled and RMS-normalised window of each token, [n, D] float32.

    A window of ``2 * ratio`` tokens overlaps its predecessor: its older half reads the first D of the state's values
    and scores, its newer half the second D. Slots < 0 (before the sequence) do not take part.
    """
    dim, size, width = weight.numel(), state_cache.shape[1], state_cache.shape[2] // 2
    safe = slots.clamp(min=0)
    state = state_cache[safe // size, safe % size]
    column = torch.arange(dim) + dim * (torch.arange(slots.shape[1]) >= ratio).long().unsqueeze(1)
    column = column.expand(slots.shape[0], -1, -1)
    score = state.gather(2, column + width).masked_fill((slots < 0).unsqueeze(2), float("-inf"))
    x = (score.softmax(1) * state.gather(2, column)).sum(1)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
