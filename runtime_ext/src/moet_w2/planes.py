"""Fragment-major planes: how 2-bit codes and their scales lie in memory, and the way back.

A weight matrix ``[N, K]`` is cut into tiles of 16 rows x 128 columns; tiles follow each other along K first,
then along N. A tile is 512 bytes: 16 bytes for each of the 32 lanes of the warp that reads it as the A
operand of eight m16n8k16 matrix instructions (PTX ISA, "Matrix fragments for mma.m16n8k16"). With lane =
4 * g + t the fragment of one instruction is rows g and g + 8, columns 2t, 2t+1, 2t+8 and 2t+9.

    16 bytes of a lane = 4 words; word j covers columns 32j .. 32j+31, so one scale block

    word j:   bit 31                                                                  bit 0
              | g+8: 2t+9 2t+8 | g: 2t+9 2t+8 | g+8: 2t+1 2t | g: 2t+1 2t |
                    nibble 7 6          5 4            3 2          1 0
    nibble:   bits 0-1 = that column in step 2j, bits 2-3 = the same column, 16 further, in step 2j + 1

So ``word & 0x33333333`` and ``(word >> 2) & 0x33333333`` are each one instruction's eight codes, spread as a
byte-permute selector wants them. Scales keep their bytes and follow the same tiles: 64 bytes a tile, at
``8 * g + 4 * half + j`` the scale of row ``g + 8 * half`` and block j, so a lane reads its rows' in 8 bytes.

Codes arrive packed as in :mod:`moet_w2.codebook`, uint8 ``[N, K / 2]`` with one 2-bit code a nibble.
"""

from __future__ import annotations

from functools import cache

import torch

from .errors import UnsupportedError
from .geometry import SCALE_BLOCK, TILE_COLS, TILE_ROWS


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
    # row = (tile_n, half, g); byte of a row = (tile_k, word j, step s, hi, t)
    grid = codes.view(tiles_n, 2, 8, tiles_k, 4, 2, 2, 4)
    both = grid[:, :, :, :, :, 0] | (grid[:, :, :, :, :, 1] << 2)
    lanes = both.permute(0, 3, 2, 6, 4, 5, 1)  # tile_n, tile_k, g, t, j, hi, half
    return _store(lanes, out)


def unpack_codes(planes: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of :func:`pack_codes`.

    Args:
        planes: uint8 ``[..., N * K / 4]``.
        rows: N.
        cols: K.

    Returns:
        uint8 ``[..., N, K]``: one 2-bit code 0..3 an element.
    """
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=planes.device)
    codes = (byte_rows(planes, rows, cols).unsqueeze(-1) >> shifts & 3).flatten(-2)
    natural = torch.empty_like(codes)
    natural[..., byte_columns(cols).flatten()] = codes
    return natural


def byte_rows(planes: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """Undo the tiling and nothing else: whole bytes, sorted by row.

    Args:
        planes: uint8 ``[..., N * K / 4]``.
        rows: N.
        cols: K.

    Returns:
        uint8 ``[..., N, K / 4]``; :func:`byte_columns` says which columns a byte holds.
    """
    tiles_n, tiles_k = tiles(rows, cols)
    lanes = planes.reshape(-1, tiles_n, tiles_k, 8, 4, 4, 2, 2)  # b, tile_n, tile_k, g, t, j, hi, half
    return lanes.permute(0, 1, 7, 3, 2, 5, 6, 4).reshape(*planes.shape[:-1], rows, cols // 4)


@cache
def byte_columns(cols: int) -> torch.Tensor:
    """int64 ``[K / 4, 4]``: the columns in each byte of a row of :func:`byte_rows`, from its low bits up.

    The same tensor for the same K, since every call of a layer asks for it: not to be written to.
    """
    natural = torch.arange(cols).view(-1, 2, 2, 4, 2)  # block, step s, hi, t, h
    return natural.permute(0, 2, 3, 4, 1).reshape(-1, 4)


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
    grid = scales.view(tiles_n, 2, 8, tiles_k, 4)  # tile_n, half, g, tile_k, j
    return _store(grid.permute(0, 3, 2, 1, 4), out)


def unpack_scales(packed: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of :func:`pack_scales`: uint8 ``[..., N * K / 32]`` to ``[..., N, K / 32]``."""
    tiles_n, tiles_k = tiles(rows, cols)
    grid = packed.reshape(-1, tiles_n, tiles_k, 8, 2, 4)
    return grid.permute(0, 1, 4, 3, 2, 5).reshape(*packed.shape[:-1], rows, cols // SCALE_BLOCK)


def tiles(rows: int, cols: int) -> tuple[int, int]:
    """Tiles along N and along K of a weight matrix; UnsupportedError where it does not tile."""
    if rows % TILE_ROWS or cols % TILE_COLS or not rows or not cols:
        raise UnsupportedError(
            f"a weight of {rows} x {cols} cannot be cut into W2 tiles: rows must be a multiple of "
            f"{TILE_ROWS}, columns of {TILE_COLS}"
        )
    return rows // TILE_ROWS, cols // TILE_COLS


def _store(view: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return view.reshape(-1)
    out.view(view.shape).copy_(view)
    return out
