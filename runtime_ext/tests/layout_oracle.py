"""The layout of the kernels' header, read off its picture and followed weight by weight. Slow on purpose."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import torch

HEADER = Path(__file__).resolve().parents[2] / "kernels" / "include" / "layout.cuh"


@cache
def picture() -> dict[str, dict[tuple[int, int], int]]:
    """Bit of a half-word, by ``sign`` or ``magn.``, then by (row >= 8, q), as the header draws it."""
    lines = {}
    for line in HEADER.read_text().splitlines():
        found = re.match(r"//\s+(bit|sign|magn\.)\s+(?=\S)", line)
        if found:
            lines[found[1]] = line
    # A label stands at most one character beside the bit number above it.
    bits = {found.end(): int(found[0]) for found in re.finditer(r"\d+", lines.pop("bit"))}
    drawn = {}
    for name, line in lines.items():
        drawn[name] = {}
        for label in re.finditer(r"([GH])([0-3])", line):
            (bit,) = (number for end, number in bits.items() if abs(label.end() - end) <= 1)
            drawn[name][label[1] == "H", int(label[2])] = bit
    return drawn


def pack_planes(codes: torch.Tensor) -> torch.Tensor:
    """uint8 ``[N * K / 4]`` of 2-bit codes ``[N, K]``, one an element."""
    rows, cols = codes.shape
    packed = [0] * (rows * cols // 4)
    for row in range(rows):
        for col in range(cols):
            lower, g = divmod(row % 16, 8)
            block, within = divmod(col % 128, 32)
            t, (q, h) = within // 8, divmod(within % 8, 2)
            word = (row // 16 * (cols // 128) + col // 128) * 128 + (4 * g + t) * 4 + block
            value = (-4, -1, 1, 4)[codes[row, col]]
            for name, flag in (("sign", value < 0), ("magn.", abs(value) == 4)):
                bit = 16 * h + picture()[name][lower, q]
                packed[word * 4 + bit // 8] |= flag << bit % 8
    return torch.tensor(packed, dtype=torch.uint8)


def pack_fp4(codes: torch.Tensor) -> torch.Tensor:
    """uint8 ``[N * K / 2]`` of e2m1 codes ``[N, K]``, one an element."""
    rows, cols = codes.shape
    packed = [0] * (rows * cols // 2)
    for row in range(rows):
        for col in range(cols):
            lower, g = divmod(row % 16, 8)
            block, within = divmod(col % 64, 32)
            t, (q, h) = within // 8, divmod(within % 8, 2)
            step, second = divmod(q, 2)
            word = (row // 16 * (cols // 64) + col // 64) * 128 + (4 * g + t) * 4 + 2 * block + step
            bit = 16 * h + 4 * (lower + 2 * second)
            packed[word * 4 + bit // 8] |= int(codes[row, col]) << bit % 8
    return torch.tensor(packed, dtype=torch.uint8)


def pack_scales(scales: torch.Tensor) -> torch.Tensor:
    """uint8 ``[N * K / 32]`` of UE8M0 bytes ``[N, K / 32]``."""
    rows, blocks = scales.shape
    packed = torch.empty(rows * blocks, dtype=torch.uint8)
    for row in range(rows):
        for block in range(blocks):
            tile = row // 16 * (blocks // 4) + block // 4
            packed[tile * 64 + 8 * (row % 8) + 4 * (row % 16 >= 8) + block % 4] = scales[row, block]
    return packed


def pack_nibbles(values: torch.Tensor) -> torch.Tensor:
    """uint8 ``[N, K / 2]`` of ``[N, K]``, one an element: the checkpoint's packing."""
    return values[:, 0::2] | values[:, 1::2] << 4
