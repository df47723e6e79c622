"""Works beside the steps: takes the counts, asks the policy, reads rows, fills slots. One thread, never blocking one.

    running thread, every boundary       Pool.boundary; every few steps a buffer of counts goes into the queue
    manager's thread, every buffer       counts -> policy -> evictions and promotions; rows: pack -> staging -> slot

Everything slow, and everything that waits for the device, happens in the manager's thread.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import torch

from ..cache import publish
from . import policy
from .metrics import Metrics, Totals
from .policy import Rules
from .pool import Expert, Pool
from .store import Pack
from .trace import Recorder
from .transfer import Mark, Passed

logger = logging.getLogger("vllm.moet_w2.correction")

WARM_FILE = "warm-set.json"
COUNT_STEPS = 8
"""Boundaries between two windows of counts."""
MOST_MOVES = 8
"""Promotions a pass at most: 96 MiB of rows at the real geometry."""
_COUNT_BUFFERS = 2
_STAGING_ROWS = 2
"""One is read from the pack while the other is on its way to the device."""
_SAVE_SECONDS = 60.0
_IDLE_SECONDS = 1.0
"""Without a window for so long, what is worth keeping is saved: a server that stops gives its workers no time."""
_RETRY_SECONDS = 60.0


class Manager:
    """Keeps the pool's content close to what the policy wants."""

    def __init__(
        self,
        pool: Pool,
        pack: Pack,
        eligible: numpy.ndarray,
        name: str = "freq",
        half_life: float = policy.HALF_LIFE,
        most_moves: int = MOST_MOVES,
        clock: Callable[[], float] = time.monotonic,
        recorder: Recorder | None = None,
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
            recorder: records every window, or None.
        """
        self.pool, self.pack, self.name, self.half_life = pool, pack, name, half_life
        self.eligible = eligible & numpy.array([pack.sealed(layer) for layer in range(len(eligible))], dtype=bool)
        self.rules = Rules(pool.slots, most_moves)
        self.heat = numpy.zeros(tuple(pool.table.shape))
        self._totals = Totals()
        self._recorder = recorder
        self._clock, self._seen, self._saved = clock, clock(), clock()
        transfer = pool.transfer
        self._staging: deque[tuple[torch.Tensor, Mark]] = deque(
            (transfer.buffer(pack.row_bytes, dtype=torch.uint8), Passed()) for _ in range(_STAGING_ROWS)
        )
        self._buffers: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        for _ in range(_COUNT_BUFFERS):
            self._buffers.put(transfer.buffer(*pool.counts.shape, dtype=torch.int64))
        self._windows: queue.SimpleQueue[tuple[torch.Tensor, Mark] | None] = queue.SimpleQueue()
        self._retry_at: dict[Expert, float] = {}
        self._unsaved = False
        self._thread: threading.Thread | None = None
        self._wanted: list[Expert] = self._warm_set()

    def start(self) -> None:
        """Work in a thread of its own until :meth:`close`."""
        self._thread = threading.Thread(target=self._run, name="moet-correction", daemon=True)
        self._thread.start()

    @property
    def works(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def boundary(self) -> None:
        """Called between steps by the thread that runs them. Never waits."""
        self.pool.boundary()
        if self.pool.step % COUNT_STEPS == 0:
            try:
                buffer = self._buffers.get_nowait()
            except queue.Empty:
                return  # the manager is busy; the counters go on, and the next window is a longer one
            self._windows.put((buffer, self.pool.take_counts(buffer)))

    def run_pass(self, window: numpy.ndarray) -> None:
        """One pass over a window of routings. Windows are added, none is dropped.

        Args:
            window: int64 ``[layers, experts]``.
        """
        now, resident = self._clock(), self.pool.resident()
        self._totals.windows += 1
        self._totals.routings += int(window.sum())
        self._totals.hits += int(window[resident].sum())
        self.heat = policy.warmed(self.heat, window, self.name, now - self._seen, self.half_life)
        self._seen = now
        entered = self._fill()
        claimed, heat = self.pool.resident(), self.heat.copy()
        for expert in self._wanted:
            claimed[expert] = True
        for expert in self._unreadable(now):
            heat[expert] = 0
        moves = policy.decide(heat, claimed, self.eligible, self.rules)
        leave = [expert for expert in moves.evict if expert not in self._wanted]
        # Who is evicted while it still waits for its slot only stops waiting.
        self._wanted = [expert for expert in self._wanted if expert not in moves.evict] + list(moves.promote)
        self.pool.evict(leave)
        self._totals.evictions += len(leave)
        entered += self._fill()
        if self._recorder is not None:
            self._recorder.add(now, window, entered, leave)
        self._unsaved = True
        if now - self._saved > _SAVE_SECONDS:
            self.save()

    def metrics(self) -> Metrics:
        """The tier as it is now; from any thread."""
        return Metrics(self.pool.slots, int(self.pool.resident().sum()), replace(self._totals))

    def save(self) -> None:
        """Write who holds a slot, for the next start, and the trace. A failure is logged, never fatal."""
        self._saved, self._unsaved = self._clock(), False
        held = [[int(layer), int(expert)] for layer, expert in numpy.argwhere(self.pool.resident())]
        try:
            publish.write_atomically(self.pack.directory, WARM_FILE, json.dumps(held).encode())
        except OSError as error:
            logger.warning("correction: the warm set was not saved: %s", error)
        if self._recorder is not None:
            self._recorder.write(self._totals)

    def close(self) -> None:
        """Stop the thread and save."""
        if self._thread is not None:
            self._windows.put(None)
            self._thread.join()
            self._thread = None
        else:
            self.save()

    def _run(self) -> None:
        self.pool.transfer.enter_thread()
        self._guarded(self._fill)  # the warm set, before the first routing is counted
        while True:
            try:
                handed = self._windows.get(timeout=_IDLE_SECONDS if self._unsaved else None)
            except queue.Empty:
                self._guarded(self.save)
                continue
            if handed is None:
                break
            buffer, read = handed
            read.wait()
            window = buffer.numpy().copy()
            self._buffers.put(buffer)
            self._guarded(self.run_pass, window)
        self._guarded(self.save)

    def _guarded(self, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception:
            # Correction only improves what the base already serves: a failing pass must not end a server.
            self._totals.failures += 1
            logger.exception("correction: a pass failed; experts stay as they are")

    def _fill(self) -> list[Expert]:
        """Give slots, as long as there are any, to those who wait, in order; who got one."""
        entered, failures = [], []
        while self._wanted:
            taken = self.pool.take_slot()
            if taken is None:
                break
            slot, free = taken
            expert = self._wanted.pop(0)
            staging, sent = self._staging[0]
            sent.wait()
            try:
                self.pack.read(*expert, staging)
                copied = self.pool.transfer.fill(self.pool.rows[slot], staging, free)
            except Exception as error:
                self.pool.give_back(slot, free)  # whatever happened, or the pool would be one slot smaller for good
                if not isinstance(error, OSError):
                    raise
                self._totals.read_errors += 1
                self._retry_at[expert] = self._clock() + _RETRY_SECONDS
                failures.append(error)
                continue
            self._staging.rotate(-1)
            self._staging[-1] = (staging, copied)
            self.pool.enter(expert, slot, copied)
            self._totals.promotions += 1
            self._totals.bytes_read += self.pack.row_bytes
            entered.append(expert)
        if failures:
            logger.warning("correction: %d experts stay on their base; the first: %s", len(failures), failures[0])
        return entered

    def _unreadable(self, now: float) -> list[Expert]:
        """Whose row could not be read a short while ago: a broken pack is not asked for them at every pass."""
        self._retry_at = {expert: time for expert, time in self._retry_at.items() if time > now}
        return list(self._retry_at)

    def _warm_set(self) -> list[Expert]:
        """Who held a slot when the last server stopped, as far as it may hold one now."""
        layers, experts = self.heat.shape
        warm = [
            (layer, expert)
            for layer, expert in read_warm_set(self.pack.directory)
            if layer in range(layers) and expert in range(experts) and self.eligible[layer]
        ][: self.pool.slots]
        for expert in warm:
            self.heat[expert] = 1.0
        return warm


def read_warm_set(directory: Path) -> list[Expert]:
    """The saved warm set, or nothing where there is none that can be read."""
    try:
        return [(int(layer), int(expert)) for layer, expert in json.loads((directory / WARM_FILE).read_text())]
    except (OSError, ValueError, TypeError):
        return []
