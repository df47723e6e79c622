"""Sparse attention over the paged caches, and what surrounds it."""

from __future__ import annotations

import torch

from .cache import NOPE, read_tokens, rotate, write_tokens

_CHUNK = 256
"""Query tokens handled at once: bounds the score matrix of a long prefill."""


def qnorm_rope_kv_insert(
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    swa_kv_cache_2d: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_head_padded: int,
    eps: float,
    cache_block_size: int,
) -> torch.Tensor:
    """Normalise and rotate queries [T, heads, 512]; rotate, quantise and store keys [T, 512] (slots < 0 skipped).

    Returns:
        queries [T, q_head_padded, 512] in the dtype of ``q``, zero in the padding heads.
    """
    angles = cos_sin_cache[positions]
    x = q.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    out = q.new_zeros(q.shape[0], q_head_padded, q.shape[2])
    out[:, : q.shape[1], :NOPE] = x[..., :NOPE].to(q.dtype)
    out[:, : q.shape[1], NOPE:] = rotate(x[..., NOPE:], angles.unsqueeze(1)).to(q.dtype)

    keep = (slot_mapping >= 0).nonzero().squeeze(1)
    if len(keep):
        keys = kv[keep].float()
        rope = rotate(keys[:, NOPE:], angles[keep])
        write_tokens(swa_kv_cache_2d, slot_mapping[keep], keys[:, :NOPE].bfloat16().float(), rope, cache_block_size)
    return out


def sparse_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    window_cache_2d: torch.Tensor,
    window_slots: torch.Tensor,
    window_block_size: int,
    compressed_cache_2d: torch.Tensor,
    compressed_slots: torch.Tensor,
    compressed_block_size: int,
    attn_sink: torch.Tensor,
    scale: float,
) -> None:
    """Attention of each query [T, heads, 512] over its own slots of two caches; keys are values; slots < 0 are void.

    ``attn_sink`` [heads] joins the softmax as a logit with a zero value. A query without any slot gives zeros.
    """
    for start in range(0, q.shape[0], _CHUNK):
        part = slice(start, start + _CHUNK)
        query = q[part].float()
        sets = [_visible(window_cache_2d, window_slots[part], window_block_size)]
        if compressed_slots.shape[1]:
            sets.append(_visible(compressed_cache_2d, compressed_slots[part], compressed_block_size))
        keys = torch.cat([keys for keys, _ in sets])
        void = torch.cat([void for _, void in sets], dim=1)
        logits = (query @ keys.t()) * scale
        logits.masked_fill_(void.unsqueeze(1), float("-inf"))
        sink = attn_sink.view(1, -1, 1).expand(len(query), -1, 1)
        weights = torch.cat((logits, sink), dim=-1).softmax(-1)[..., :-1]
        weights = weights.masked_fill(void.all(1).view(-1, 1, 1), 0.0)
        out[part] = (weights @ keys).to(out.dtype)


def inverse_rope(o: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, rope_dim: int) -> torch.Tensor:
    """Undo the rotation in the last ``rope_dim`` values of every head of ``o`` [T, heads, D]; float32."""
    x = o.float()
    rope = rotate(x[..., -rope_dim:], cos_sin_cache[positions].unsqueeze(1), inverse=True)
    return torch.cat((x[..., :-rope_dim], rope), dim=-1)


def _visible(cache: torch.Tensor, slots: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every distinct key that some row of ``slots`` [T, K] names, [U, 512], and where a row does not see it, [T, U]."""
    distinct, place = torch.unique(slots, return_inverse=True)
    void = torch.ones(slots.shape[0], len(distinct), dtype=torch.bool)
    void.scatter_(1, place, False)
    first = int(len(distinct) > 0 and bool(distinct[0] < 0))
    return read_tokens(cache, distinct[first:], size), void[:, first:]
