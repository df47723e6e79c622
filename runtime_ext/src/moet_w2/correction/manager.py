"""Works beside the steps: takes the counts, asks the policy, reads rows, fills slots. One thread, never blocking one.

At a boundary the running thread only applies what is ready (:meth:`Pool.boundary`) and, every few steps, leaves
the counts for this thread. Everything slow happens here.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from ..cache import publish
from . import policy
from .policy import Rules
from .pool import Expert, Pool
from .store import Pack

logger = logging.getLogger("vllm.moet_w2.correction")

WARM_FILE = "warm-set.json"
_COUNT_STEPS = 8
_WARM_SECONDS = 60.0


@dataclass
class Stats:
    """Running totals of a manager, and the last window's hit rate."""

    promotions: int = 0
    evictions: int = 0
    read_errors: int = 0
    bytes_read: int = 0
    routings: int = 0
    hits: int = 0
    """Routings whose expert held a slot when they were counted."""


class Manager:
    """Keeps the pool's content close to what the policy wants."""

    def __init__(
        self,
        pool: Pool,
        pack: Pack,
        eligible: numpy.ndarray,
        name: str = "freq",
        half_life: float = 60.0,
        most_moves: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over a pool.

        Args:
            pool: the slots.
            pack: where rows come from; layers that it does not vouch for are not eligible.
            eligible: bool ``[layers]``.
            name: one of :data:`moet_w2.correction.policy.POLICIES`.
            half_life: seconds after which a routing counts half.
            most_moves: promotions a pass at most.
            clock: wall clock in seconds.
        """
        self.pool, self.pack, self.name, self.half_life = pool, pack, name, half_life
        self.eligible = eligible & numpy.array([pack.sealed(layer) for layer in range(len(eligible))], dtype=bool)
        self.rules = Rules(pool.slots, most_moves)
        self.heat = numpy.zeros(tuple(pool.table.shape))
        self.stats = Stats()
        self._clock, self._seen = clock, clock()
        self._staging = torch.empty(pack.row_bytes, dtype=torch.uint8)
        self._wanted: list[Expert] = []
        self._windows: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._saved = clock()
        self._warm()

    def start(self) -> None:
        """Work in a thread of its own until :meth:`close`."""
        self._thread = threading.Thread(target=self._run, name="moet-correction", daemon=True)
        self._thread.start()

    def boundary(self) -> None:
        """Called between steps by the thread that runs them."""
        self.pool.boundary()
        if self.pool.step % _COUNT_STEPS == 0:
            self._windows.put(self.pool.take_counts())

    def run_pass(self, counts: torch.Tensor) -> None:
        """One pass over a window of routings. Windows are added, none is dropped.

        Args:
            counts: int64 ``[layers, experts]`` on the CPU.
        """
        now = self._clock()
        window, resident = counts.numpy(), self.pool.resident()
        self.stats.routings += int(window.sum())
        self.stats.hits += int(window[resident].sum())
        self.heat = policy.warmed(self.heat, window, self.name, now - self._seen, now, self.half_life)
        self._seen = now
        self._fill()
        claimed = resident.copy()
        for expert in self._wanted:
            claimed[expert] = True
        moves = policy.decide(self.heat, claimed, self.eligible, self.rules)
        leave = [expert for expert in moves.evict if expert not in self._wanted]
        # Who is evicted while it still waits for its slot only stops waiting.
        self._wanted = [expert for expert in self._wanted if expert not in moves.evict] + list(moves.promote)
        self.pool.evict(leave)
        self.stats.evictions += len(leave)
        self._fill()
        if now - self._saved > _WARM_SECONDS:
            self.save_warm_set()

    def save_warm_set(self) -> None:
        """Remember who holds a slot, for the next start. A failure is logged, never fatal."""
        self._saved = self._clock()
        held = [[int(layer), int(expert)] for layer, expert in numpy.argwhere(self.pool.resident())]
        try:
            publish.write_atomically(self.pack.directory, WARM_FILE, json.dumps(held).encode())
        except OSError as error:
            logger.warning("correction: the warm set was not saved: %s", error)

    def close(self) -> None:
        """Stop the thread, save the warm set."""
        if self._thread is not None:
            self._windows.put(None)
            self._thread.join()
            self._thread = None
        self.save_warm_set()

    def _run(self) -> None:
        while (counts := self._windows.get()) is not None:
            try:
                self.run_pass(counts)
            except Exception:
                # Correction only improves what the base already serves: a failing pass must not end a server.
                logger.exception("correction: a pass failed; experts stay as they are")

    def _fill(self) -> None:
        """Give slots, as long as there are any, to those who wait, in order."""
        while self._wanted:
            slot = self.pool.take_slot()
            if slot is None:
                return
            expert = self._wanted.pop(0)
            try:
                self.pack.read(*expert, self._staging)
            except OSError as error:
                self.stats.read_errors += 1
                self.pool.give_back(slot)
                logger.warning("correction: expert %s stays on its base: %s", expert, error)
                continue
            self.pool.rows[slot].copy_(self._staging)
            self.pool.enter(expert, slot)
            self.stats.promotions += 1
            self.stats.bytes_read += self.pack.row_bytes

    def _warm(self) -> None:
        """Want who held a slot when the last server stopped."""
        layers, experts = self.heat.shape
        self._wanted = [
            (layer, expert)
            for layer, expert in read_warm_set(self.pack.directory)
            if layer in range(layers) and expert in range(experts) and self.eligible[layer]
        ][: self.pool.slots]
        for expert in self._wanted:
            self.heat[expert] = 1.0


def read_warm_set(directory: Path) -> list[Expert]:
    """The saved warm set, or nothing where there is none that can be read."""
    try:
        return [(int(layer), int(expert)) for layer, expert in json.loads((directory / WARM_FILE).read_text())]
    except (OSError, ValueError, TypeError):
        return []
