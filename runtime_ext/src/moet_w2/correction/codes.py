"""How one expert's FP4 codes lie in a correction row, and the way back.

A row is the expert's w1, w3 and w2 codes, tiled like the planes (:mod:`moet_w2.planes`) but with four bits a
weight: a tile of 16 rows x 128 columns is 1024 bytes, 32 for each lane, one 4-byte word for each of its eight
instructions.

    word of step s:  nibble  7      6      5      4      3      2      1      0
                            g+8:2t+9 2t+8  g:2t+9 2t+8   g+8:2t+1 2t   g:2t+1  2t      (columns 16 s + ...)

Nibbles are the checkpoint's own e2m1 codes, unchanged. Scales are the base's and are not stored again.
"""

from __future__ import annotations

import torch

from ..geometry import TILE_COLS, TILE_ROWS, LayerGeometry
from ..planes import tiles

_TILE_BYTES = TILE_ROWS * TILE_COLS // 2


def pack(codes: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Lay MXFP4 codes out fragment-major.

    Args:
        codes: uint8 ``[N, K / 2]`` as in the checkpoint.
        out: uint8 ``[N * K / 2]`` to write to, or None for a new tensor.

    Returns:
        ``out``.
    """
    tiles_n, tiles_k = tiles(codes.shape[0], codes.shape[1] * 2)
    # row = (tile_n, half, g); byte of a row = (tile_k, step, hi, t)
    grid = codes.view(tiles_n, 2, 8, tiles_k, 8, 2, 4)
    lanes = grid.permute(0, 3, 2, 6, 4, 5, 1)  # tile_n, tile_k, g, t, step, hi, half
    if out is None:
        return lanes.reshape(-1)
    out.view(lanes.shape).copy_(lanes)
    return out


def unpack(packed: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """The inverse of :func:`pack`: uint8 ``[..., N * K / 2]`` to ``[..., N, K / 2]``."""
    tiles_n, tiles_k = tiles(rows, cols)
    lanes = packed.reshape(-1, tiles_n, tiles_k, 8, 4, 8, 2, 2)
    return lanes.permute(0, 1, 7, 3, 2, 5, 6, 4).reshape(*packed.shape[:-1], rows, cols // 2)


def row_slices(geometry: LayerGeometry) -> dict[str, slice]:
    """Where w1, w3 and w2 lie in a row."""
    one = geometry.width * geometry.hidden // 2
    return {"w1": slice(0, one), "w3": slice(one, 2 * one), "w2": slice(2 * one, 3 * one)}
