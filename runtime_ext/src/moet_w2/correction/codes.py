"""How one expert's FP4 codes lie in a correction row, and the way back.

A row is the expert's w1, w3 and w2 codes, tiled like the planes (:mod:`moet_w2.planes`, with the picture in
``kernels/include/layout.cuh``) but with four bits a weight: a tile is 16 rows x 64 columns, 512 bytes, 16 for each
lane (g, t).

    word 2j + s of a lane: rows g and g + 8, scale block j, matrix instruction s of that block
    nibble i of half h:    row g + 8 * (i & 1), column 32j + 8t + 2q + h with q = 2s + (i >> 1)

Nibbles are the checkpoint's own e2m1 codes, unchanged. Scales are the base's and are not stored again.
"""

from __future__ import annotations

from functools import cache

import torch

from .. import codebook
from ..geometry import LayerGeometry
from ..kernels import quantize
from ..planes import tiles

_TILE_BLOCKS = 2  # scale blocks along K in a tile
_CHUNK_BYTES = 1 << 17  # of words at work, so that the passes below stay in a core's own cache
_NIBBLES, _UPPER_NIBBLES = 0x0F0F0F0F, 0xF0F0F0F0 - (1 << 32)
_LOW_HALF, _HIGH_HALF = 0x0000FFFF, 0xFFFF0000 - (1 << 32)


def pack(codes: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Lay MXFP4 codes out fragment-major.

    Args:
        codes: uint8 ``[N, K / 2]`` as in the checkpoint, rows may lie apart; N a multiple of 16, K of 128.
        out: uint8 ``[N * K / 2]`` to write to, or None for a new tensor.

    Returns:
        ``out``.

    Raises:
        UnsupportedError: N or K is not a multiple of the planes' tile.
        KernelError: CUDA refused; on CUDA only.
    """
    tiles_n, tiles_k = _tiles(codes.shape[0], codes.shape[1] * 2)
    if out is None:
        out = torch.empty(codes.numel(), dtype=torch.uint8, device=codes.device)
    if codes.is_cuda:
        quantize.pack_fp4(codes, out)
        return out
    # A word of the source is a lane's share of one row and scale block; nibble 2q + h is column 2q + h.
    source = codes.contiguous().view(torch.int32).view(tiles_n, 2, 8, tiles_k, _TILE_BLOCKS, 4)
    lanes = out.view(torch.int64).view(tiles_n, tiles_k, 8, 4, _TILE_BLOCKS)  # tile_n, tile_k, g, t, j: both words
    step = max(1, _CHUNK_BYTES // (8 * codes.shape[1]))
    buffers = torch.empty(3, min(step, tiles_n), *source.shape[2:], dtype=torch.int32, device=codes.device)
    pairs = torch.empty(*buffers.shape[1:], 2, dtype=torch.int32, device=codes.device)
    for first in range(0, tiles_n, step):
        part = source[first : first + step]
        even, odd, one = buffers[:, : len(part)]
        pair = pairs[: len(part)]
        _merge_rows(part[:, 0], part[:, 1], even, odd, one)
        _cross_halves(even, odd, one, pair)
        lanes[first : first + step].copy_(pair.view(torch.int64).squeeze(-1).permute(0, 2, 1, 4, 3))
    return out


def unpack(packed: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of :func:`pack`: uint8 ``[..., N * K / 2]`` to ``[..., N, K / 2]``."""
    tiles_n, tiles_k = _tiles(rows, cols)
    lanes = packed.contiguous().view(torch.int32).view(-1, tiles_n, tiles_k, 8, 4, _TILE_BLOCKS, 2)
    first, second = lanes.permute(6, 0, 1, 3, 2, 5, 4)  # s -> tile_n, g, tile_k, j, t
    even, odd = (first & _LOW_HALF) | second << 16, (first >> 16 & _LOW_HALF) | (second & _HIGH_HALF)
    upper = (even & _NIBBLES) | (odd & _NIBBLES) << 4
    lower = (even >> 4 & _NIBBLES) | (odd & _UPPER_NIBBLES)
    natural = torch.stack((upper, lower), dim=2).reshape(*packed.shape[:-1], rows, cols // 8)
    return natural.view(torch.uint8)


def pattern_values(packed: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """e2m1 values of a weight, its columns as :func:`moet_w2.planes.pattern_columns` lists them.

    Args:
        packed: uint8 ``[N * K / 2]``.
        rows: N.
        cols: K.

    Returns:
        float32 ``[N, K]``, without scales.
    """
    tiles_n, tiles_k = _tiles(rows, cols)
    # Both words of a scale block travel together, as one int64; then their halves are sorted by h before s.
    lanes = packed.contiguous().view(torch.int64).view(tiles_n, tiles_k, 8, 4, _TILE_BLOCKS)
    words = lanes.permute(0, 2, 1, 4, 3).reshape(tiles_n, 8, cols // 8).view(torch.int16)
    halves = words.view(tiles_n, 8, cols // 8, 2, 2).transpose(-1, -2).reshape(tiles_n, 8, -1).int()
    pairs = torch.empty(tiles_n, 2, 8, cols // 2, dtype=torch.int32, device=packed.device)
    torch.bitwise_and(halves, 0x0F0F, out=pairs[:, 0])
    halves >>= 4
    torch.bitwise_and(halves, 0x0F0F, out=pairs[:, 1])
    return torch.index_select(_pair_values(packed.device), 0, pairs.view(-1)).view(torch.float32).view(rows, cols)


def row_slices(geometry: LayerGeometry) -> dict[str, slice]:
    """Where w1, w3 and w2 lie in a row."""
    one = geometry.width * geometry.hidden // 2
    return {"w1": slice(0, one), "w3": slice(one, 2 * one), "w2": slice(2 * one, 3 * one)}


def _tiles(rows: int, cols: int) -> tuple[int, int]:
    """Tiles along N and along K; a weight must tile as planes too, so K is a multiple of 128."""
    tiles_n, tiles_k = tiles(rows, cols)
    return tiles_n, 2 * tiles_k


def _merge_rows(
    upper: torch.Tensor, lower: torch.Tensor, even: torch.Tensor, odd: torch.Tensor, one: torch.Tensor
) -> None:
    """Rows g and g + 8 to words whose byte q is both rows' column 2q (``even``) or 2q + 1 (``odd``)."""
    torch.bitwise_and(lower, _NIBBLES, out=one)
    one <<= 4
    torch.bitwise_and(upper, _NIBBLES, out=even)
    even |= one
    torch.bitwise_right_shift(upper, 4, out=one)
    one &= _NIBBLES
    torch.bitwise_and(lower, _UPPER_NIBBLES, out=odd)
    odd |= one


def _cross_halves(even: torch.Tensor, odd: torch.Tensor, one: torch.Tensor, pair: torch.Tensor) -> None:
    """Lower halves of ``even`` and ``odd`` to step 0 of ``pair`` ``[..., 2]``, upper halves to step 1."""
    torch.bitwise_left_shift(odd, 16, out=one)
    odd &= _HIGH_HALF
    torch.bitwise_or(one, even & _LOW_HALF, out=pair[..., 0])
    even >>= 16
    even &= _LOW_HALF
    torch.bitwise_or(even, odd, out=pair[..., 1])


@cache
def _pair_values(device: torch.device) -> torch.Tensor:
    """float64 ``[0x0F0F + 1]``: two float32, the values of the codes in the low nibbles of each byte of an index."""
    pairs = torch.arange(0x0F0F + 1, device=device)
    values = torch.stack((codebook.e2m1_values(pairs & 15), codebook.e2m1_values(pairs >> 8)), dim=-1)
    return values.view(torch.float64).view(-1)
