"""The indexer: quantised queries, their scores against the compressed keys, and the 512 best keys of each query."""

from __future__ import annotations

import torch

from .cache import FP8_MAX, ROPE, SCALE_FLOOR, power_of_two, read_keys, rotate, to_fp8

TOPK = 512
_CHUNK = 64
"""Query tokens handled at once: bounds the [tokens, heads, keys] scores of a long prefill."""


def query_rope_quant(
    positions: torch.Tensor,
    index_q: torch.Tensor,
    index_q_cos_sin_cache: torch.Tensor,
    index_q_fp8: torch.Tensor,
    index_weights: torch.Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    index_weights_out: torch.Tensor,
) -> None:
    """Rotate and quantise queries [T, heads, 128] into ``index_q_fp8``; fold their scales into the head weights."""
    q = index_q.float()
    rope = rotate(q[..., -ROPE:], index_q_cos_sin_cache[positions].unsqueeze(1)).bfloat16().float()
    q = torch.cat((q[..., :-ROPE], rope), dim=-1)
    scale = torch.exp2(power_of_two(q.abs().amax(-1, keepdim=True).clamp(min=SCALE_FLOOR) / FP8_MAX))
    index_q_fp8.copy_(to_fp8(q, scale))
    factor = index_weights_softmax_scale * index_weights_head_scale
    index_weights_out.copy_(index_weights.float() * scale.squeeze(-1) * factor)


def paged_logits(
    q_fp8: torch.Tensor,
    kvcache_fp8: torch.Tensor,
    weight: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    block_size: int,
    max_seq_len: int,
) -> torch.Tensor:
    """Score of every key of every query's request: sum over heads of weight * relu(q . k), times the key's scale.

    Args:
        q_fp8: [T, heads, 128]; ``weight``: [T, heads] float32; ``seq_lens``: keys visible to each query.
        page_table: [T, pages] blocks of each query's request; queries of one request follow each other.

    Returns:
        [T, max_seq_len] float32, -inf past a query's own length.
    """
    logits = torch.full((q_fp8.shape[0], max_seq_len), float("-inf"))
    tables, counts = torch.unique_consecutive(page_table, dim=0, return_counts=True)
    start = 0
    for table, count in zip(tables, counts.tolist(), strict=True):
        longest = min(int(seq_lens[start : start + count].max()), max_seq_len)
        if longest > 0:
            place = torch.arange(longest)
            slots = table[place // block_size].long() * block_size + place % block_size
            keys, scale = read_keys(kvcache_fp8, slots, block_size)
            for first in range(start, start + count, _CHUNK):
                part = slice(first, min(first + _CHUNK, start + count))
                dots = (q_fp8[part].float() @ keys.t()).relu_()
                score = (weight[part].unsqueeze(1) @ dots).squeeze(1) * scale
                hidden = place >= seq_lens[part].unsqueeze(1)
                logits[part, :longest] = score.masked_fill(hidden, float("-inf"))
        start += count
    return logits


def topk_512(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_tables: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    out_raw_indices: torch.Tensor | None,
) -> None:
    """The 512 best keys of each row, or all of them where there are no more, padded with -1.

    ``out_raw_indices`` [T, 512] receives positions, ``out_page_indices`` the cache slots that they map to.
    """
    count = seq_lens.clamp(0, scores.shape[1]).unsqueeze(1)
    raw = torch.arange(TOPK).expand(len(scores), -1)
    if scores.shape[1] > TOPK:
        beyond = torch.arange(scores.shape[1]) >= count
        best = scores.masked_fill(beyond, float("-inf")).topk(TOPK, dim=1).indices
        raw = torch.where(count > TOPK, best, raw)
    valid = raw < count
    safe = torch.where(valid, raw, 0)
    pages = page_tables.long().gather(1, safe // page_size) * page_size + safe % page_size
    out_page_indices[:, :TOPK] = torch.where(valid, pages, -1).to(out_page_indices.dtype)
    if out_raw_indices is not None:
        out_raw_indices[:, :TOPK] = torch.where(valid, raw, -1).to(out_raw_indices.dtype)
