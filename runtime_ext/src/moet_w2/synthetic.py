"""Weights that are computed from a seed instead of read: runs at full size need bytes, not a checkpoint.

Expert tensors are a function of (seed, layer, expert, projection), the same on every device: word i of a tensor is
output i of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). The FP4
codes are drawn, and the planes are made of them by the quantiser, so that a correction row refines the very planes.

Scales are chosen by fan-in, so that activations keep their size through a layer; what goes back into the residual
stream is smaller by :data:`RESIDUAL_BITS`, so that hidden states stay O(1) at any depth.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from .cache import layout
from .cache.key import CacheKey
from .config import DUMMY_FORMAT, SYNTHETIC_FORMAT, SYNTHETIC_ORIGIN
from .correction import codes
from .geometry import SCALE_BLOCK, LayerGeometry
from .layer import PROJECTIONS, Shard, W2Layer

LOAD_FORMATS = (DUMMY_FORMAT, SYNTHETIC_FORMAT)
"""vLLM's names for starts without a checkpoint: its own, and ours, which also draws the rest of the model."""
ORIGIN = SYNTHETIC_ORIGIN
"""What the audit says of such a layer; ``moet audit check`` holds it for a fault unless the recipe asks for it."""
RESIDUAL_BITS = 5
"""Projections back into the residual stream are this many powers of two below their fan-in's scale.

Rounding reaches logits through them, and so does what came before. With 3, rounding by 2**-9 of every activation
changes 1.4 to 3.9% of a tiny model's tokens, and another prompt 7 to 18%; with 5, 0.3 to 0.4% and 4 to 5%. So tokens
still follow from the prompt, and five to eleven times less from kernels.
"""

_RMS = 2.6
"""Of the 2-bit values of codes that are all alike likely: sqrt((5 * 1 + 3 * 16) / 8)."""
_SPREAD = 3
"""Scale bytes that a tensor draws from, around its own."""
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


class Experts:
    """Expert tensors of a checkpoint that lies nowhere.

    Attributes:
        seed: what they are computed from.
        geometry: one layer, before the tensor-parallel split.
        device: where they are computed.
    """

    def __init__(self, seed: int, geometry: LayerGeometry, device: torch.device) -> None:
        self.seed, self.geometry, self.device = seed, geometry, device

    def codes(self, layer: int, expert: int, projection: str) -> torch.Tensor:
        """MXFP4 codes, uint8 ``[N, K / 2]``, every nibble alike likely."""
        rows, cols = self._shape(projection)
        return self._bytes(rows * cols // 2, layer, expert, projection, "weight").view(rows, cols // 2)

    def scales(self, layer: int, expert: int, projection: str) -> torch.Tensor:
        """UE8M0 bytes, uint8 ``[N, K / 32]``: one of three neighbours around what the fan-in asks for."""
        rows, cols = self._shape(projection)
        drawn = self._bytes(rows * cols // SCALE_BLOCK, layer, expert, projection, "scale")
        return (drawn % _SPREAD + lowest_scale(projection, cols)).view(rows, cols // SCALE_BLOCK)

    def fill(self, layer: W2Layer) -> None:
        """Build a layer that no tensor has reached, in its final place, as a checkpoint's tensors would.

        Raises:
            MoetError: see :meth:`moet_w2.layer.W2Layer.put`.
        """
        for expert in range(self.geometry.experts):
            for projection in PROJECTIONS:
                layer.put(expert, projection, "weight", self.codes(layer.key, expert, projection))
                layer.put(expert, projection, "scale", self.scales(layer.key, expert, projection))
        layer.origin = ORIGIN

    def _shape(self, projection: str) -> tuple[int, int]:
        hidden, width = self.geometry.hidden, self.geometry.width
        return (hidden, width) if projection == "w2" else (width, hidden)

    def _bytes(self, count: int, layer: int, expert: int, projection: str, kind: str) -> torch.Tensor:
        number = ((layer << 20 | expert) << 3 | PROJECTIONS.index(projection)) << 1 | (kind == "scale")
        return random_words(mix(mix(self.seed & _WORD) ^ number), -(-count // 8), self.device).view(torch.uint8)[:count]


class Rows:
    """Correction rows computed when they are asked for, in the place of :class:`moet_w2.correction.store.Pack`.

    Attributes:
        key: of the layers; only the warm set is kept, in ``directory``.
        row_bytes: bytes of a row.
    """

    def __init__(self, root: Path, key: CacheKey, experts: Experts) -> None:
        self.key, self.row_bytes = key, key.geometry.correction_row_bytes
        self.directory = layout.folder(root, key)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._experts, self._slices = experts, codes.row_slices(key.geometry)
        # Beside the steps: neither waits for the other.
        on_gpu = experts.device.type == "cuda"
        self._stream = torch.cuda.Stream(experts.device) if on_gpu else None

    def sealed(self, layer: int) -> bool:
        """Every row can be had."""
        return True

    def read(self, layer: int, expert: int, row: torch.Tensor) -> None:
        """Compute one row.

        Args:
            layer, expert: whose.
            row: uint8 ``[row_bytes]`` on the CPU, overwritten.
        """
        if self._stream is None:
            self._compute(layer, expert, row)
            return
        with torch.cuda.stream(self._stream):
            made = torch.empty(self.row_bytes, dtype=torch.uint8, device=self._experts.device)
            self._compute(layer, expert, made)
            row.copy_(made, non_blocking=True)
        self._stream.synchronize()

    def close(self) -> None:
        """Nothing is open."""

    def _compute(self, layer: int, expert: int, row: torch.Tensor) -> None:
        for projection, part in self._slices.items():
            shard, whole = self.key.shard, self._experts.codes(layer, expert, projection)
            share = whole.chunk(shard.size, dim=1 if projection == "w2" else 0)[shard.rank]
            codes.pack(share, out=row[part])


def key(experts: Experts, shard: Shard, layers: int) -> CacheKey:
    """The key of layers that are computed: equal keys promise equal bytes, as those of a checkpoint do."""
    whole = experts.geometry
    share = LayerGeometry(whole.experts, whole.hidden, whole.width // shard.size)
    return CacheKey(f"{ORIGIN}-{experts.seed}", share, shard, layers, ORIGIN)


def lowest_scale(projection: str, fan_in: int) -> int:
    """Smallest UE8M0 byte of an expert tensor: outputs of unit inputs are O(1), those of ``w2`` below it."""
    bits = round(math.log2(_RMS * math.sqrt(fan_in))) + (RESIDUAL_BITS if projection == "w2" else 0)
    return 127 - bits - _SPREAD // 2


def mix(word: int) -> int:
    """SplitMix64's finaliser over an unsigned 64-bit word."""
    word = (word ^ word >> 30) * _FIRST & _WORD
    word = (word ^ word >> 27) * _SECOND & _WORD
    return word ^ word >> 31


def random_words(seed: int, count: int, device: torch.device) -> torch.Tensor:
    """int64 ``[count]``: the first outputs of SplitMix64 from ``seed``, bit for bit the same on every device."""
    words = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    words *= _signed(_GAMMA)
    words += _signed(seed & _WORD)
    shifted = torch.empty_like(words)
    for shift, factor in ((30, _FIRST), (27, _SECOND), (31, None)):
        torch.bitwise_right_shift(words, shift, out=shifted)
        shifted &= (1 << 64 - shift) - 1  # torch has no unsigned shift
        words ^= shifted
        if factor is not None:
            words *= _signed(factor)
    return words


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
