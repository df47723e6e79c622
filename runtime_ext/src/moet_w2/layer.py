"""W2Layer: the one complete copy of a layer's planes and scales, filled tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from . import codebook, planes
from .errors import CheckpointError
from .geometry import SCALE_BLOCK, LayerGeometry
from .host_memory import HostAllocation
from .kernels import quantize
from .placement import Placement
from .shard import KINDS, PROJECTIONS, Shard


@dataclass
class W2Layer:
    """Planes and scales of one layer, in their final place from the start.

    Attributes:
        key: layer key.
        geometry: shapes on this rank.
        placement: device or mapped.
        storage: uint8 ``[geometry.nbytes]``, the canonical layout.
        host: the host allocation behind ``storage`` where it is mapped, else None.
        shard: this rank's share.
        reads: int64 ``[2]`` where the layer's calls count what they read (:mod:`moet_w2.metrics.reads`); None where
            the layer is not mapped.
        dispatched: whether the layer has computed yet.
        on_codes: told of each expert's MXFP4 codes as they arrive: (expert, projection, uint8 ``[N, K / 2]`` of
            this rank, whose rows may lie apart).
        origin: where its bytes come from, "checkpoint" (quantised here) or "cache".
    """

    key: int
    geometry: LayerGeometry
    placement: Placement
    storage: torch.Tensor
    host: HostAllocation | None = None
    shard: Shard = field(default_factory=Shard)
    reads: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.dispatched = False
        self.on_codes: Callable[[int, str, torch.Tensor], None] | None = None
        self.origin = "checkpoint"
        self._arrived: set[tuple[int, str, str]] = set()
        self._last: torch.Tensor | None = None
        self._views = {
            name: self.storage[part.offset : part.offset + part.nbytes].view(part.experts, part.row_bytes)
            for name, part in self.geometry.parts.items()
        }

    def view(self, part: str) -> torch.Tensor:
        """uint8 ``[experts, row_bytes]`` of ``planes13``, ``sc13``, ``planes2`` or ``sc2``, without a copy."""
        return self._views[part]

    @property
    def complete(self) -> bool:
        return len(self._arrived) == self.geometry.experts * len(PROJECTIONS) * len(KINDS)

    def missing(self) -> list[str]:
        """Checkpoint names, below the layer, of tensors that have not arrived."""
        return [
            f"experts.{expert}.{projection}.{kind}"
            for expert in range(self.geometry.experts)
            for projection in PROJECTIONS
            for kind in KINDS
            if (expert, projection, kind) not in self._arrived
        ]

    def put(self, expert: int, projection: str, kind: str, tensor: torch.Tensor) -> None:
        """Quantise one checkpoint tensor into its final place. On CUDA the work is enqueued, not waited for.

        Args:
            expert: expert index.
            projection: ``w1``, ``w2`` or ``w3``.
            kind: ``weight`` (int8 or uint8 ``[N, K / 2]``) or ``scale`` (float8_e8m0fnu, or its bytes as uint8,
                ``[N, K / 32]``); both whole, before the tensor-parallel split.
            tensor: the tensor, on any device. Scales are looked at where they are, so best on the CPU.

        Raises:
            CheckpointError: wrong dtype or shape, an expert that the layer does not have, a second arrival, or a
                scale that the kernels cannot apply.
            UnsupportedError, KernelError: see :mod:`moet_w2.kernels.quantize`; on CUDA only.
        """
        name = f"layers.{self.key}.ffn.experts.{expert}.{projection}.{kind}"
        if not 0 <= expert < self.geometry.experts:
            raise CheckpointError(f"{name}: this layer has experts 0..{self.geometry.experts - 1}")
        if (expert, projection, kind) in self._arrived:
            raise CheckpointError(f"{name}: arrived twice; the checkpoint holds it in two shards")
        rows, cols = self._full_shape(projection)
        per_byte = 2 if kind == "weight" else SCALE_BLOCK
        allowed = (torch.int8, torch.uint8) if kind == "weight" else (torch.float8_e8m0fnu, torch.uint8)
        if tensor.dtype not in allowed or tuple(tensor.shape) != (rows, cols // per_byte):
            raise CheckpointError(
                f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} is not an MXFP4 {kind}; "
                f"expected {str(allowed[0]).removeprefix('torch.')} {[rows, cols // per_byte]}"
            )
        source = tensor.contiguous().view(torch.uint8)
        if kind == "scale":
            _check_scales(name, source)
        source = source.to(self.storage.device)
        share, place = self._share(projection, source), self._place(expert, projection, kind)
        if kind == "weight" and self.on_codes is not None:
            self.on_codes(expert, projection, share)
        if source.is_cuda:
            if kind == "weight":
                quantize.pack_planes(source, share, place)
            else:
                quantize.pack_scales(share, place)
        elif kind == "weight":
            planes.pack_codes(self._share(projection, codebook.to_two_bit(source)), out=place)
        else:
            planes.pack_scales(share, out=place)
        self._arrived.add((expert, projection, kind))
        # vLLM loads with max_split_size_mb:20, and PyTorch takes tensors of 1 to 10 MiB from segments of 20 MiB. One in
        # which nothing lies is then too large to be split again, so each tensor would take a new one: 45 GiB for three
        # layers. While the last tensor lives until the next is there, one segment serves all.
        if kind == "weight":
            self._last = source
        if self.complete:
            self._last = None

    def adopt(self) -> None:
        """Take what the storage holds for the complete layer: it was read from a cache of this very layer."""
        self.origin = "cache"
        self._arrived = {
            (expert, projection, kind)
            for expert in range(self.geometry.experts)
            for projection in PROJECTIONS
            for kind in KINDS
        }

    def close(self) -> None:
        """Give mapped memory back. The layer cannot be read afterwards."""
        self._views.clear()
        self.storage = torch.empty(0, dtype=torch.uint8)
        if self.host is not None:
            self.host.close()

    def _full_shape(self, projection: str) -> tuple[int, int]:
        width, hidden = self.geometry.width * self.shard.size, self.geometry.hidden
        return (hidden, width) if projection == "w2" else (width, hidden)

    def _share(self, projection: str, tensor: torch.Tensor) -> torch.Tensor:
        dim = 1 if projection == "w2" else 0
        return tensor.chunk(self.shard.size, dim=dim)[self.shard.rank]

    def _place(self, expert: int, projection: str, kind: str) -> torch.Tensor:
        row = self.view(("planes" if kind == "weight" else "sc") + ("2" if projection == "w2" else "13"))[expert]
        if projection == "w2":
            return row
        half = row.numel() // 2  # gate rows first, then up rows; tiles run along rows, so each is contiguous
        return row[:half] if projection == "w1" else row[half:]


def _check_scales(name: str, scales: torch.Tensor) -> None:
    """Refuse UE8M0 bytes above :data:`moet_w2.codebook.MAX_SCALE`; NaN is one of them."""
    largest = int(scales.max())
    if largest > codebook.MAX_SCALE:
        value = "NaN" if largest == 255 else f"2**{largest - 127}"
        raise CheckpointError(
            f"{name}: holds the scale byte {largest} ({value}), at most {codebook.MAX_SCALE} "
            f"(2**{codebook.MAX_SCALE - 127}) can be served; the checkpoint is broken there, fetch that shard again"
        )
