"""Replays a recorded routing trace through the manager itself: what a policy and a pool would have made of it.

Same code as in a server, with a pool that holds no rows and a clock that shows the trace's times.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from .manager import COUNT_STEPS, Manager
from .metrics import Totals
from .pool import Pool
from .trace import Trace, dense


@dataclass(frozen=True)
class Outcome:
    """What came of a replay.

    Attributes:
        policy, slots: what was replayed.
        totals: the manager's, with ``bytes_read`` at the trace's row size.
        seconds: when each window was worked on, since the first.
        hit_rates: share of the window's routings that found their expert in a slot; NaN for a window without any.
    """

    policy: str
    slots: int
    totals: Totals
    seconds: list[float]
    hit_rates: list[float]

    @property
    def hit_rate(self) -> float:
        """Share of all routings; NaN where there were none."""
        return self.totals.hits / self.totals.routings if self.totals.routings else float("nan")

    @property
    def churn(self) -> float:
        """Evictions per promotion: 0 while slots only fill, towards 1 where experts only replace each other."""
        return self.totals.evictions / self.totals.promotions if self.totals.promotions else 0.0


class _NoPack:
    """A pack that vouches for everything and reads nothing."""

    row_bytes = 1

    def __init__(self, directory: Path, eligible: tuple[int, ...]) -> None:
        self.directory, self._eligible = directory, eligible

    def sealed(self, layer: int) -> bool:
        return layer in self._eligible

    def read(self, layer: int, expert: int, row: torch.Tensor) -> None:
        return None


def replay(trace: Trace, policy: str, slots: int) -> Outcome:
    """Run a trace through a policy, from an empty pool.

    Args:
        trace: the trace.
        policy: one of :data:`moet_w2.correction.policy.POLICIES`.
        slots: slots of the pool.
    """
    header, shape = trace.header, (trace.header.layers, trace.header.experts)
    pool = Pool(*shape, slots, _NoPack.row_bytes, torch.device("cpu"))
    now, hit_rates, before = [0.0], [], Totals()
    with tempfile.TemporaryDirectory() as folder:
        pack = _NoPack(Path(folder), header.eligible)
        settings = (policy, header.half_life, header.most_moves)
        manager = Manager(pool, pack, numpy.ones(header.layers, dtype=bool), *settings, clock=lambda: now[0])
        for window in trace.windows:
            now[0] = window.seconds
            manager.run_pass(dense(window, shape))
            for _ in range(COUNT_STEPS):
                pool.boundary()
            after = manager.metrics().totals
            routings = after.routings - before.routings
            hit_rates.append((after.hits - before.hits) / routings if routings else float("nan"))
            before = after
    totals = manager.metrics().totals
    totals.bytes_read *= header.row_bytes
    return Outcome(policy, slots, totals, [window.seconds for window in trace.windows], hit_rates)
