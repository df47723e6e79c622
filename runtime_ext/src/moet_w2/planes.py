"""Fragment-major planes: how 2-bit codes and their scales lie in memory, and the way back.

``kernels/include/layout.cuh`` has the picture and its reasons; this is the same layout in torch. A weight matrix
``[N, K]`` is cut into tiles of 16 rows x 128 columns, which follow each other along K first, then along N. A tile is
512 bytes, 16 for each of the 32 lanes of the warp that reads it; lane = 4 * g + t.

    word j of a lane: rows g and g + 8, columns 32j + 8t .. 32j + 8t + 7, so one scale block
    half h of a word: its columns 32j + 8t + 2q + h, q = 0..3
    bits of a half:   row g:      sign 15 - 4q, magnitude (8 - 4q) mod 16
                      row g + 8:  the same, rotated 2 to the right

A sign of 1 is negative, a magnitude of 1 is 4 (else 1). Row g's bits are ``0x9999`` of a half, row g + 8's are
``0x6666``. What :func:`row_patterns` makes of either, a number below :data:`PATTERNS`, looks four weights up at once.

Scales keep their bytes and follow the same tiles: 64 bytes a tile, at ``8 * g + 4 * half + j`` the scale of row
``g + 8 * half`` and block j, so a lane reads its rows' in 8 bytes.

Codes arrive packed as in :mod:`moet_w2.codebook`, uint8 ``[N, K / 2]`` with one 2-bit code a nibble.
"""

from __future__ import annotations

from functools import cache

import torch

from .errors import UnsupportedError
from .geometry import SCALE_BLOCK, TILE_COLS, TILE_ROWS

PATTERNS = 0x0600
"""One more than the largest pattern of four weights."""

_CHUNK_BYTES = 1 << 17  # of words at work, so that the passes below stay in a core's own cache


def pack_codes(codes: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Lay 2-bit codes out fragment-major.

    Args:
        codes: uint8 ``[N, K / 2]``, one 2-bit code a nibble; N a multiple of 16, K of 128.
        out: uint8 ``[N * K / 4]`` to write to, or None for a new tensor.

    Returns:
        ``out``.

    Raises:
        UnsupportedError: N or K is not a multiple of the tile's.
    """
    rows, cols = codes.shape[0], codes.shape[1] * 2
    tiles_n, tiles_k = tiles(rows, cols)
    if out is None:
        out = torch.empty(rows * cols // 4, dtype=torch.uint8, device=codes.device)
    # A word of the source is what a lane reads of one row and scale block; nibble 2q + h is column 2q + h.
    source = codes.contiguous().view(torch.int32).view(tiles_n, 2, 8, tiles_k, 4, 4)  # tile_n, half, g, tile_k, j, t
    lanes = out.view(torch.int32).view(tiles_n, tiles_k, 8, 4, 4)  # tile_n, tile_k, g, t, j
    step = max(1, _CHUNK_BYTES // (8 * cols // 2))
    buffers = torch.empty(3, min(step, tiles_n), 8, tiles_k, 4, 4, dtype=torch.int32, device=codes.device)
    for first in range(0, tiles_n, step):
        part = source[first : first + step]
        words, one, two = buffers[:, : len(part)]
        _merge_rows(part[:, 0], part[:, 1], words, one, two)
        _split_halves(words, one, two)
        lanes[first : first + step].copy_(words.permute(0, 2, 1, 4, 3))
    return out


def unpack_codes(planes: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of :func:`pack_codes`.

    Args:
        planes: uint8 ``[..., N * K / 4]``.
        rows: N.
        cols: K.

    Returns:
        uint8 ``[..., N, K]``: one 2-bit code 0..3 an element.
    """
    codes = pattern_codes(planes.device)[row_patterns(planes, rows, cols).long()].flatten(-2)
    natural = torch.empty_like(codes)
    natural[..., pattern_columns(cols).flatten()] = codes
    return natural


def row_patterns(planes: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """Undo the tiling and nothing else: patterns of four weights, sorted by row.

    Args:
        planes: uint8 ``[..., N * K / 4]``.
        rows: N.
        cols: K.

    Returns:
        int32 ``[..., N, K / 4]``, each below :data:`PATTERNS`; :func:`pattern_columns` says which columns it holds.
    """
    tiles_n, tiles_k = tiles(rows, cols)
    lanes = planes.contiguous().view(torch.int32).view(-1, tiles_n, tiles_k, 8, 4, 4)  # tile_n, tile_k, g, t, j
    words = lanes.permute(0, 1, 3, 2, 5, 4).reshape(-1, tiles_n, 1, 8, cols // 8)
    return _fold(words).view(torch.int16).int().view(*planes.shape[:-1], rows, cols // 4)


@cache
def pattern_columns(cols: int) -> torch.Tensor:
    """int64 ``[K / 4, 4]``: the columns of each pattern in a row of :func:`row_patterns`, q = 0..3.

    The same tensor for the same K, since every call of a layer asks for it: not to be written to.
    """
    return torch.arange(cols).view(-1, 4, 2).permute(0, 2, 1).reshape(-1, 4)  # lane's share, h, q


@cache
def pattern_codes(device: torch.device) -> torch.Tensor:
    """uint8 ``[PATTERNS, 4]``: the four 2-bit codes of each pattern, q = 0..3."""
    halves = torch.arange(1 << 16, dtype=torch.int32, device=device)
    codes = torch.zeros(PATTERNS, 4, dtype=torch.uint8, device=device)
    patterns = _fold(halves.view(1, 1, -1)) & 0xFFFF
    for lower in (0, 1):
        for q in range(4):
            sign = 15 - 2 * lower - 4 * q
            negative, large = halves >> sign & 1, halves >> (sign - 7) % 16 & 1
            codes[patterns[lower, 0], q] = ((1 - negative) << 1 | negative ^ large).to(torch.uint8)
    return codes


def pack_scales(scales: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Lay UE8M0 bytes out beside their planes.

    Args:
        scales: uint8 ``[N, K / 32]``.
        out: uint8 ``[N * K / 32]`` to write to, or None for a new tensor.

    Returns:
        ``out``.

    Raises:
        UnsupportedError: N or K is not a multiple of the tile's.
    """
    tiles_n, tiles_k = tiles(scales.shape[0], scales.shape[1] * SCALE_BLOCK)
    if out is None:
        out = torch.empty(scales.numel(), dtype=torch.uint8, device=scales.device)
    words = scales.contiguous().view(torch.int32).view(tiles_n, 2, 8, tiles_k)  # tile_n, half, g, tile_k; a word is j
    out.view(torch.int32).view(tiles_n, tiles_k, 8, 2).copy_(words.permute(0, 3, 2, 1))
    return out


def unpack_scales(packed: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of :func:`pack_scales`: uint8 ``[..., N * K / 32]`` to ``[..., N, K / 32]``."""
    tiles_n, tiles_k = tiles(rows, cols)
    words = packed.contiguous().view(torch.int32).view(-1, tiles_n, tiles_k, 8, 2)
    natural = words.permute(0, 1, 4, 3, 2).reshape(*packed.shape[:-1], rows, tiles_k)
    return natural.view(torch.uint8)


def tiles(rows: int, cols: int) -> tuple[int, int]:
    """Tiles along N and along K of a weight matrix; UnsupportedError where it does not tile."""
    if rows % TILE_ROWS or cols % TILE_COLS or not rows or not cols:
        raise UnsupportedError(
            f"a weight of {rows} x {cols} cannot be cut into W2 tiles: rows must be a multiple of "
            f"{TILE_ROWS}, columns of {TILE_COLS}"
        )
    return rows // TILE_ROWS, cols // TILE_COLS


def _fold(words: torch.Tensor) -> torch.Tensor:
    """Patterns of row g and of row g + 8 in both halves of int32 words: ``[..., 1, 8, n]`` to ``[..., 2, 8, n]``.

    Folding the upper byte of a half into the lower keeps the table small enough for a core's first cache. The two
    kinds of pattern begin at 0 and at 0x0400.
    """
    rows, folded, begin = _fold_masks(words.device)
    patterns = words & rows
    patterns |= patterns >> 6
    patterns &= folded
    patterns |= begin
    return patterns


@cache
def _fold_masks(device: torch.device) -> torch.Tensor:
    """int32 ``[3, 2, 1, 1]``: the bits of a row, where they are once folded, and where its patterns begin."""
    masks = [[_signed(0x99999999), 0x66666666], [0x02FD02FD, 0x01FE01FE], [0, 0x04000400]]
    return torch.tensor(masks, dtype=torch.int32, device=device).view(3, 2, 1, 1)


def _merge_rows(
    upper: torch.Tensor, lower: torch.Tensor, out: torch.Tensor, one: torch.Tensor, two: torch.Tensor
) -> None:
    """Words of row g and row g + 8 to one word whose nibbles are those of the plane, still in the source's order.

    A code's upper bit is the opposite of the sign, and its two bits differ where the magnitude is 1. So all bits
    are collected inverted, signs in place, magnitudes one byte (q to q + 1) and two bytes further.
    """
    torch.bitwise_left_shift(upper, 2, out=out)
    out |= lower  # nibble: code of row g, then code of row g + 8
    torch.bitwise_right_shift(out, 1, out=one)
    one ^= out
    torch.bitwise_and(one, 0x11111111, out=two)  # row g + 8
    one &= 0x44444444  # row g
    out &= _signed(0xAAAAAAAA)
    for magnitudes, left in ((one, 6), (two, 18)):  # none has bit 31 set, so shifting right brings zeros in
        wrapped = magnitudes >> (32 - left)
        magnitudes <<= left
        out |= magnitudes
        out |= wrapped
    torch.bitwise_not(out, out=out)


def _split_halves(words: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> None:
    """Move nibble 2q + h of each word to nibble 3 - q of half h, in place."""
    torch.bitwise_left_shift(words, 12, out=one)
    one &= _signed(0xF000F000)
    torch.bitwise_right_shift(words, 12, out=two)
    two &= 0x000F000F
    words &= 0x0FF00FF0
    words |= one
    words |= two
    # The bytes are now, from the top, (h, q) = 0: 2 3, 1: 2 3, 0: 0 1, 1: 0 1; the outer two change places.
    torch.bitwise_left_shift(words, 24, out=one)
    torch.bitwise_right_shift(words, 24, out=two)
    two &= 0xFF
    words &= 0x00FFFF00
    words |= one
    words |= two


def _signed(word: int) -> int:
    """The int32 with the bits of a 32-bit word; torch takes no larger scalar for it."""
    return word - (1 << 32) if word >> 31 else word
