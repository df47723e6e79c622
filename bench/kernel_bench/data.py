"""One layer of random weights, in both tiers: as the checkpoint would hold it, and packed for the kernels."""

from __future__ import annotations

from functools import lru_cache

import torch

from moet_w2 import codebook, planes
from moet_w2.correction import codes
from moet_w2.geometry import SCALE_BLOCK, LayerGeometry

SCALE_BYTES = (117, 126)
"""UE8M0 bytes from, up to but without: 2^-10 .. 2^-2."""
_SMALL = 1 << 24  # weights of a layer up to which the CPU draws them, so that they are the same on every machine


class Weights:
    """A layer whose two tiers hold different codes, so that reading the wrong one shows.

    Attributes:
        geometry: experts, hidden, width.
        storage: uint8, the planes and scales as the kernels read them.
        rows: uint8 ``[E, row_bytes]``, the correction row of every expert; ``row_of`` says where it lies.
    """

    def __init__(self, geometry: LayerGeometry, device: str, seed: int = 0) -> None:
        self.geometry = geometry
        experts, hidden, width = geometry.experts, geometry.hidden, geometry.width
        draw_on = "cpu" if experts * width * hidden * 3 <= _SMALL else device
        self._made = torch.Generator(device=draw_on).manual_seed(seed)
        shapes = {"13": (2 * width, hidden), "2": (hidden, width)}
        self._two_bit = {n: self._bytes(0x33, experts, r, c // 2).to(device) for n, (r, c) in shapes.items()}
        self._fp4 = {n: self._bytes(0xFF, experts, r, c // 2).to(device) for n, (r, c) in shapes.items()}
        self._scales = {n: self._scale(experts, r, c // SCALE_BLOCK).to(device) for n, (r, c) in shapes.items()}
        self.storage = torch.empty(geometry.nbytes, dtype=torch.uint8, device=device)
        self.rows = torch.empty(experts, geometry.correction_row_bytes, dtype=torch.uint8, device=device)
        self._pack()

    def _bytes(self, mask: int, *shape: int) -> torch.Tensor:
        made = torch.randint(0, 256, shape, dtype=torch.uint8, device=self._made.device, generator=self._made)
        return made & mask

    def _scale(self, *shape: int) -> torch.Tensor:
        low, high = SCALE_BYTES
        return torch.randint(low, high, shape, dtype=torch.uint8, device=self._made.device, generator=self._made)

    def _pack(self) -> None:
        parts, width = self.geometry.parts, self.geometry.width
        places = codes.row_slices(self.geometry)
        for expert in range(self.geometry.experts):
            for name in ("13", "2"):
                for part, pack, source in (
                    (parts["planes" + name], planes.pack_codes, self._two_bit[name][expert]),
                    (parts["sc" + name], planes.pack_scales, self._scales[name][expert]),
                ):
                    start = part.offset + expert * part.row_bytes
                    pack(source, out=self.storage[start : start + part.row_bytes])
            row, gate_up = self.rows[expert], self._fp4["13"][expert]
            for name, source in (("w1", gate_up[:width]), ("w3", gate_up[width:]), ("w2", self._fp4["2"][expert])):
                codes.pack(source, out=row[places[name]])

    def exact(self, expert: int, fp4: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """float64 ``[2 I, H]`` and ``[H, I]`` of one expert, from the codes as drawn: packing has no part in it."""
        table = codebook.E2M1 + tuple(-m for m in codebook.E2M1) if fp4 else codebook.LEVELS * 4
        both = []
        for name in ("13", "2"):
            packed = (self._fp4 if fp4 else self._two_bit)[name][expert]
            scale = torch.exp2(self._scales[name][expert].double() - 127)
            low_high = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
            value = torch.tensor(table, dtype=torch.float64, device=packed.device)[low_high.int()]
            both.append((value.unflatten(-1, (-1, SCALE_BLOCK)) * scale.unsqueeze(-1)).flatten(-2))
        return both[0], both[1]

    def to(self, device: str) -> Weights:
        """The layer with what the kernels read on ``device``; only that, where it was drawn elsewhere."""
        if self.storage.device.type == device:
            return self
        moved = object.__new__(Weights)
        moved.geometry, moved.storage, moved.rows = self.geometry, self.storage.to(device), self.rows.to(device)
        return moved

    def placed(self, slots: torch.Tensor | None) -> torch.Tensor | None:
        """Correction rows in the order that a slot table asks for: row ``slots[e]`` is expert e's."""
        if slots is None:
            return None
        held = slots >= 0
        rows = torch.full_like(self.rows, 0xFF)  # a row that nobody holds must not be read
        rows[slots[held].long()] = self.rows[held]
        return rows


@lru_cache(maxsize=1)
def weights(geometry: LayerGeometry, device: str) -> Weights:
    """The layer that all cases of a geometry share; one is kept."""
    return Weights(geometry, device)
