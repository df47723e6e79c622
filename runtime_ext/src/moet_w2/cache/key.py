"""The cache key: equal keys promise equal bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import quantizer_abi
from ..checkpoint import INDEX, CheckpointReport
from ..geometry import LayerGeometry
from ..shard import Shard

FORMAT = 1
"""Version of the files themselves."""


@dataclass(frozen=True)
class CacheKey:
    """Everything that a layer's bytes depend on.

    Attributes:
        checkpoint: identity of the checkpoint, see :func:`identity`.
        geometry: one layer on this rank.
        shard: this rank's share.
        layers: number of W2 layers that the checkpoint holds, drafts included.
        source: where the checkpoint lay, for a person; no part of the key.
    """

    checkpoint: str
    geometry: LayerGeometry
    shard: Shard
    layers: int
    source: str = field(default="", compare=False)

    @property
    def document(self) -> dict[str, Any]:
        """The key, spelled out as JSON-serialisable data."""
        return {
            "format": FORMAT,
            "checkpoint": self.checkpoint,
            "quantizer_abi": quantizer_abi.QUANTIZER_ABI,
            "zero_mode": quantizer_abi.ZERO_MODE,
            "experts": self.geometry.experts,
            "hidden": self.geometry.hidden,
            "width": self.geometry.width,
            "tp_rank": self.shard.rank,
            "tp_size": self.shard.size,
            "layers": self.layers,
        }

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True).encode()).hexdigest()


def make(report: CheckpointReport, geometry: LayerGeometry, shard: Shard) -> CacheKey:
    """The key of a checkpoint's layers on one rank."""
    return CacheKey(
        identity(report.path), geometry, shard, report.target_layers + report.draft_layers, str(report.path)
    )


def identity(folder: Path) -> str:
    """Digest of what tells one checkpoint from another without reading its payload.

    That is the content of config.json and of the index, and each shard's name, size and modification time. A
    shard that is rewritten in place changes its time; a copy of a checkpoint may too, and then only costs a
    rebuild.
    """
    digest = hashlib.sha256()
    for name in ("config.json", INDEX):
        content = (folder / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    for shard in sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())):
        facts = (folder / shard).stat()
        digest.update(f"{shard} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()
