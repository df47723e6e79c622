"""Shapes and byte counts of one W2 layer. No torch: the planner and the launchers use it too."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UnsupportedError

SCALE_BLOCK = 32
"""Weights that share one UE8M0 scale byte, along K (OCP Microscaling Formats, MX block size)."""
TILE_ROWS = 16
"""Output rows of one plane tile: M of the m16n8k16 matrix instruction that reads it."""
TILE_COLS = 128
"""Input columns of one plane tile: 16 bytes a lane at 2 bits a weight, and four scale blocks."""

PARTS = ("planes13", "sc13", "planes2", "sc2")
"""The four parts of a layer, in their order in memory."""


@dataclass(frozen=True)
class Part:
    """One part of a layer: uint8 ``[experts, row_bytes]`` at ``offset`` bytes from the layer's start."""

    name: str
    experts: int
    row_bytes: int
    offset: int

    @property
    def nbytes(self) -> int:
        return self.experts * self.row_bytes


@dataclass(frozen=True)
class LayerGeometry:
    """One layer of routed experts on one tensor-parallel rank.

    Attributes:
        experts: number of routed experts E.
        hidden: model width H (K of the first GEMM, N of the second).
        width: expert width I on this rank (half of N of the first GEMM, K of the second).
    """

    experts: int
    hidden: int
    width: int

    def __post_init__(self) -> None:
        if self.experts < 1:
            raise UnsupportedError(f"a W2 layer needs at least one expert, got {self.experts}")
        for name, value in (("hidden size", self.hidden), ("expert width per rank", self.width)):
            if value < TILE_COLS or value % TILE_COLS:
                raise UnsupportedError(
                    f"W2 planes need a {name} that is a multiple of {TILE_COLS}, got {value}; "
                    "lower the tensor-parallel size or serve without --quantization moet_w2"
                )

    @property
    def parts(self) -> dict[str, Part]:
        """The four parts by name, offsets contiguous in the order of :data:`PARTS`."""
        weights13 = 2 * self.width * self.hidden
        weights2 = self.hidden * self.width
        sizes = (weights13 // 4, weights13 // SCALE_BLOCK, weights2 // 4, weights2 // SCALE_BLOCK)
        parts, offset = {}, 0
        for name, row_bytes in zip(PARTS, sizes, strict=True):
            parts[name] = Part(name, self.experts, row_bytes, offset)
            offset += self.experts * row_bytes
        return parts

    @property
    def nbytes(self) -> int:
        """Bytes of the whole layer."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert: planes and scales."""
        return 3 * self.width * self.hidden // 4 + self.scale_row_bytes

    @property
    def scale_row_bytes(self) -> int:
        """Bytes of one expert's scales."""
        return 3 * self.width * self.hidden // SCALE_BLOCK

    @property
    def correction_row_bytes(self) -> int:
        """Bytes of one expert's FP4 codes, its scales not counted: they are the base's."""
        return 3 * self.width * self.hidden // 2
