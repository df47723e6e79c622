"""The correction tier of one worker process: pack, pool and manager, put together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from ..cache.key import CacheKey
from ..layer import W2Layer
from ..placement import LayerPlan
from .manager import Manager
from .pool import Pool
from .store import Pack

PREFILL_TOKENS = 64
"""A call over more tokens than this is prefill: decode steps of this product's profiles stay far below it."""


@dataclass(frozen=True)
class Resident:
    """One layer's view of the pool during a call.

    Attributes:
        rows: uint8 ``[slots, row_bytes]``.
        slots: int32 ``[experts]``, slot of each expert or -1.
    """

    rows: torch.Tensor
    slots: torch.Tensor


class Correction:
    """Slots for hot experts of the layers that the plan lets be corrected."""

    def __init__(
        self,
        plan: LayerPlan,
        key: CacheKey,
        store: Path,
        slots: int,
        policy: str,
        prefill: bool,
        device: torch.device,
    ) -> None:
        """Open the pack and allocate the pool; nothing is resident yet.

        Args:
            plan: which layers may be corrected.
            key: what the pack's rows depend on.
            store: root of the packs.
            slots: rows in the pool.
            policy: ``freq`` or ``lru``.
            prefill: whether prefill reads resident slots.
            device: where the pool lies.

        Raises:
            CacheError, OSError: the pack cannot be opened.
        """
        self.plan, self.policy, self.prefill = plan, policy, prefill
        self.pack = Pack(store, key)
        self.pool = Pool(key.layers, key.geometry.experts, slots, self.pack.row_bytes, device)
        self.manager: Manager | None = None

    def wants_codes(self, layer: int) -> bool:
        """Whether a layer's FP4 codes are needed and not in the pack yet."""
        return self.plan.correctable(layer) and not self.pack.sealed(layer)

    def created(self, layer: W2Layer) -> None:
        """Have a new layer's codes written as they arrive, where they are needed."""
        if self.wants_codes(layer.key):
            layer.on_codes = lambda expert, projection, codes: self.pack.put(layer.key, expert, projection, codes)

    def loaded(self, layer: W2Layer) -> None:
        """Vouch for the codes of a layer that is complete."""
        if layer.on_codes is not None:
            layer.on_codes = None
            self.pack.seal(layer.key)

    def boundary(self) -> None:
        """Between two steps. The first one starts the manager: by then every layer is complete."""
        if self.manager is None:
            eligible = numpy.array([self.plan.correctable(key) for key in range(self.pack.key.layers)])
            self.manager = Manager(self.pool, self.pack, eligible, self.policy)
            self.manager.start()
        self.manager.boundary()

    def resident(self, layer: int, ids: torch.Tensor) -> Resident | None:
        """Count a call's routings and give what it may read instead of the base.

        Args:
            layer: layer key.
            ids: integer ``[tokens, k]``; -1 is no routing.
        """
        if not self.plan.correctable(layer):
            return None
        routed = ids[ids >= 0].flatten()
        self.pool.counts[layer] += torch.bincount(routed, minlength=self.pool.counts.shape[1])
        if ids.shape[0] > PREFILL_TOKENS and not self.prefill:
            return None
        return Resident(self.pool.rows, self.pool.table[layer])

    def facts(self) -> dict[str, Any]:
        """For the audit."""
        return {
            "policy": self.policy,
            "slots": self.pool.slots,
            "row_bytes": self.pack.row_bytes,
            "bytes": self.pool.rows.nbytes,
            "prefill": self.prefill,
        }

    def close(self) -> None:
        """Stop the manager; save the warm set."""
        if self.manager is not None:
            self.manager.close()
            self.manager = None
