"""Byte layouts of the paged caches, and rotary embedding.

A block of the attention cache (``fp8_ds_mla``), for ``size`` tokens, then free space up to the block's stride::

    [0, 576 * size)            per token: 448 FP8 E4M3 values, then 64 BF16 values (the rotated part)
    [576 * size, 584 * size)   per token: 7 UE8M0 scale bytes, one for each 64 FP8 values, then one zero

A block of the indexer's key cache::

    [0, 128 * size)            per token: 128 FP8 E4M3 values
    [128 * size, 132 * size)   per token: one FP32 scale, a power of two
"""

from __future__ import annotations

import torch

NOPE, ROPE = 448, 64
TOKEN_BYTES = NOPE + 2 * ROPE
SCALE_BYTES = 8
TILE = 64
INDEX_DIM = 128
FP8_MAX = 448.0
SCALE_FLOOR = 1e-4


def rotate(x: torch.Tensor, cos_sin: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Rotate adjacent pairs of the last axis, 2n wide, by angles given as [..., cos (n) | sin (n)], float32."""
    cos, sin = cos_sin.chunk(2, dim=-1)
    if inverse:
        sin = -sin
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def to_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Round ``x / scale`` to FP8 E4M3, clamped; ``scale`` is a power of two and broadcasts."""
    return (x / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def power_of_two(amax: torch.Tensor) -> torch.Tensor:
    """Exponent (float32, whole) of the smallest power of two that is at least ``amax``."""
    return torch.ceil(torch.log2(amax))


def write_tokens(cache: torch.Tensor, slots: torch.Tensor, nope: torch.Tensor, rope: torch.Tensor, size: int) -> None:
    """Store tokens in the attention cache.

    Args:
        cache: [blocks, bytes] uint8; ``slots``: [n] int64, none negative; ``size``: tokens a block.
        nope: [n, 448] float32, already rounded to BF16; ``rope``: [n, 64] float32, already rotated.
    """
    tiles = nope.view(-1, NOPE // TILE, TILE)
    exponent = power_of_two((tiles.abs().amax(-1) / FP8_MAX).clamp(min=SCALE_FLOOR))
    codes = to_fp8(tiles, torch.exp2(exponent).unsqueeze(-1)).view(-1, NOPE).view(torch.uint8)
    tail = rope.to(torch.bfloat16).contiguous().view(torch.uint8)
    scales = torch.zeros(len(slots), SCALE_BYTES, dtype=torch.uint8)
    scales[:, : NOPE // TILE] = (exponent + 127).to(torch.uint8)
    block, place = (slots // size).unsqueeze(1), (slots % size).unsqueeze(1)
    cache[block, place * TOKEN_BYTES + torch.arange(TOKEN_BYTES)] = torch.cat((codes, tail), dim=1)
    cache[block, size * TOKEN_BYTES + place * SCALE_BYTES + torch.arange(SCALE_BYTES)] = scales


def read_tokens(cache: torch.Tensor, slots: torch.Tensor, size: int) -> torch.Tensor:
    """Tokens of the attention cache, [n, 512] float32, for non-negative ``slots`` [n]."""
    block, place = (slots // size).unsqueeze(1), (slots % size).unsqueeze(1)
    data = cache[block, place * TOKEN_BYTES + torch.arange(TOKEN_BYTES)]
    scales = cache[block, size * TOKEN_BYTES + place * SCALE_BYTES + torch.arange(NOPE // TILE)]
    nope = data[:, :NOPE].contiguous().view(torch.float8_e4m3fn).float().view(-1, NOPE // TILE, TILE)
    nope = nope * torch.exp2(scales.float() - 127).unsqueeze(-1)
    rope = data[:, NOPE:].contiguous().view(torch.bfloat16).float()
    return torch.cat((nope.view(-1, NOPE), rope), dim=1)


def write_keys(cache: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, size: int) -> None:
    """Store indexer keys [n, 128], float32 already rounded to BF16, at non-negative ``slots`` [n]."""
    scale = torch.exp2(power_of_two(keys.abs().amax(-1, keepdim=True).clamp(min=SCALE_FLOOR) / FP8_MAX))
    block, place = (slots // size).unsqueeze(1), (slots % size).unsqueeze(1)
    cache[block, place * INDEX_DIM + torch.arange(INDEX_DIM)] = to_fp8(keys, scale).view(torch.uint8)
    cache[block, size * INDEX_DIM + place * 4 + torch.arange(4)] = scale.view(torch.uint8)


def read_keys(cache: torch.Tensor, slots: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indexer keys unscaled [n, 128] and their scales [n], both float32, for non-negative ``slots`` [n]."""
    block, place = (slots // size).unsqueeze(1), (slots % size).unsqueeze(1)
    codes = cache[block, place * INDEX_DIM + torch.arange(INDEX_DIM)].view(torch.float8_e4m3fn).float()
    scale = cache[block, size * INDEX_DIM + place * 4 + torch.arange(4)].view(torch.float32)
    return codes, scale.squeeze(1)
