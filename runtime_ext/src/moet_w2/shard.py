"""What a checkpoint calls an expert's tensors, and the share of them that one rank takes. No torch."""

from __future__ import annotations

from dataclasses import dataclass

PROJECTIONS = ("w1", "w2", "w3")
"""Gate, down and up projection of an expert, by their names in the checkpoint."""
KINDS = ("weight", "scale")


@dataclass(frozen=True)
class Shard:
    """This rank's share of the tensor-parallel split: w1 and w3 by rows, w2 by columns."""

    rank: int = 0
    size: int = 1
