"""The correction tier of one worker process: pack, pool and manager, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
import torch

from ..cache.key import CacheKey
from ..errors import UnsupportedError
from ..layer import W2Layer
from ..placement import LayerPlan
from . import policy
from .manager import MOST_MOVES, Manager
from .metrics import Metrics, Totals
from .pool import Pool
from .store import Pack
from .trace import Header, Recorder

if TYPE_CHECKING:
    from ..synthetic import Rows

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


class DeviceViews(NamedTuple):
    """What a layer's kernels read and count in. The addresses are fixed once the pool has its rows.

    Attributes:
        rows: uint8 ``[slots, row_bytes]``, or None where the call may read the base only.
        slots: int32 ``[experts]``, slot of each expert or -1; None with ``rows``.
        counts: int64 ``[experts]``, to which the call's routings are added.
    """

    rows: torch.Tensor | None
    slots: torch.Tensor | None
    counts: torch.Tensor


class Correction:
    """Slots for hot experts of the layers that the plan lets be corrected.

    Attributes:
        sized_late: whether :meth:`size` says how many slots there are.
        on_sized: called when the number of slots is known, where it is not from the start.
    """

    def __init__(
        self,
        plan: LayerPlan,
        key: CacheKey,
        store: Path,
        slots: int | None,
        policy: str,
        prefill: bool,
        device: torch.device,
        trace: Path | None = None,
        pack: Pack | Rows | None = None,
    ) -> None:
        """Open the pack and allocate the pool; nothing is resident yet.

        Args:
            plan: which layers may be corrected.
            key: what the pack's rows depend on.
            store: root of the packs.
            slots: rows in the pool, or None where :meth:`size` will say.
            policy: ``freq`` or ``lru``.
            prefill: whether prefill reads resident slots.
            device: where the pool lies.
            trace: file that receives the routing trace at the end, or None.
            pack: where rows come from, or None for the pack of ``key`` in ``store``.

        Raises:
            UnsupportedError: the layers are split over several ranks.
            CacheError, OSError: the pack cannot be opened.
        """
        if key.shard.size > 1:
            raise UnsupportedError(
                f"FP4 correction on {key.shard.size} tensor-parallel ranks: each would choose experts for itself, and "
                "a sum would mix both precisions of one expert; unset VLLM_MOE_W2_DELTA_GB or serve on one rank"
            )
        self.plan, self.policy, self.prefill, self.trace = plan, policy, prefill, trace
        self.pack = Pack(store, key) if pack is None else pack
        self.sized_late = slots is None
        self.pool = Pool(key.layers, key.geometry.experts, slots or 0, self.pack.row_bytes, device)
        self.manager: Manager | None = None
        self.on_sized: Callable[[], None] = lambda: None
        self._facts = {"policy": policy, "row_bytes": self.pack.row_bytes, "prefill": prefill}
        self._note_size()

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

    @property
    def most_slots(self) -> int:
        """Slots beyond which a pool would have more rows than there are experts that may take one."""
        return len(self._eligible()) * self.pack.key.geometry.experts

    def size(self, slots: int) -> None:
        """Give the pool its rows, once, before anything has read it."""
        with torch.inference_mode(False):  # vLLM may size in inference mode, whose tensors other threads cannot write
            self.pool.allocate(slots)
        self._note_size()
        self.on_sized()

    def start(self) -> None:
        """Begin to count and to correct: every layer is complete, and warm-up is over."""
        self.pool.counts.zero_()  # warm-up routes made-up tokens
        layers = range(self.pack.key.layers)
        eligible = numpy.array([self.plan.correctable(key) for key in layers])
        self.manager = Manager(self.pool, self.pack, eligible, self.policy, recorder=self._recorder())
        self.manager.start()

    def boundary(self) -> None:
        """Between two steps. Never waits."""
        if self.manager is not None:
            self.manager.boundary()

    def resident(self, layer: int, ids: torch.Tensor) -> Resident | None:
        """Count a call's routings and give what it may read instead of the base. For a CPU.

        Args:
            layer: layer key.
            ids: integer ``[tokens, k]``; -1 is no routing.
        """
        views = self.device_views(layer, ids.shape[0])
        if views is None:
            return None
        routed = ids[ids >= 0].flatten()
        views.counts.add_(torch.bincount(routed, minlength=len(views.counts)))
        if views.rows is None or views.slots is None:
            return None
        return Resident(views.rows, views.slots)

    def device_views(self, layer: int, tokens: int) -> DeviceViews | None:
        """What a call over so many tokens may read and where it counts; None for a layer that is not corrected.

        Does nothing on the device, so that a call can be captured in a graph.
        """
        if not self.plan.correctable(layer):
            return None
        counts = self.pool.counts[layer]
        if tokens > PREFILL_TOKENS and not self.prefill:
            return DeviceViews(None, None, counts)
        return DeviceViews(self.pool.rows, self.pool.table[layer], counts)

    def metrics(self) -> Metrics:
        """The tier as it is now; from any thread."""
        return Metrics(self.pool.slots, 0, Totals()) if self.manager is None else self.manager.metrics()

    def facts(self) -> dict[str, Any]:
        """For the audit; the same dict each time, so that a pool that is sized late shows there too."""
        return self._facts

    def close(self) -> None:
        """Stop the manager; save the warm set and the trace."""
        if self.manager is not None:
            self.manager.close()
            self.manager = None

    def _note_size(self) -> None:
        self._facts |= {"slots": self.pool.slots, "bytes": self.pool.rows.nbytes}

    def _eligible(self) -> list[int]:
        return [key for key in range(self.pack.key.layers) if self.plan.correctable(key)]

    def _recorder(self) -> Recorder | None:
        if self.trace is None:
            return None
        layers, experts = self.pool.table.shape
        facts = (self.pool.slots, self.pack.row_bytes, self.policy, policy.HALF_LIFE, MOST_MOVES)
        return Recorder(self.trace, Header(layers, experts, tuple(self._eligible()), *facts))
