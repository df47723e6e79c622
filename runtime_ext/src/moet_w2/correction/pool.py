"""The slots and the table that says who holds them. Kernels read the table; only step boundaries change it.

A slot's life, for an expert that leaves and one that comes:

    boundary k      table[leaver] = -1          the steps before k have read the slot, step k does not
    step k          runs a whole step without the slot
    boundary k + 1  the slot is free; a mark is set here, after step k on the device
    between         once the mark has passed, the newcomer's row is copied in; no table entry names the slot
    boundary m      the first one that finds the copy done: table[newcomer] = slot; step m is the first to read it

So no step ever reads a slot that is being written, also where step k + 1 is submitted before step k has run: table
changes and marks stand among the steps in the order of submission, and a row's copy waits for its mark.
:meth:`Pool.boundary` and :meth:`Pool.take_counts` belong to the thread that runs the steps and never wait for the
device; the rest belongs to the manager's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import takewhile

import numpy
import torch

from . import transfer
from .transfer import Mark, Passed, Transfer

Expert = tuple[int, int]
"""(layer, expert)."""

_TABLES = 4
"""Host copies of the table that may be on their way at a time: one more than the steps that vLLM submits ahead,
and one to spare."""


class Pool:
    """A fixed number of rows, and ``table[layer, expert]`` -> slot or -1.

    Attributes:
        rows: uint8 ``[slots, row_bytes]`` on the device.
        table: int32 ``[layers, experts]`` on the device, at a fixed address.
        counts: int64 ``[layers, experts]`` on the device, routings since they were taken last.
        step: number of boundaries so far.
        transfer: the device's copies.
    """

    def __init__(
        self,
        layers: int,
        experts: int,
        slots: int,
        row_bytes: int,
        device: torch.device,
        copies: Transfer | None = None,
    ) -> None:
        self.step, self.transfer, self._device = 0, copies or transfer.of(device), device
        self.table = torch.full((layers, experts), -1, dtype=torch.int32, device=device)
        self.counts = torch.zeros(layers, experts, dtype=torch.int64, device=device)
        self._mirror = numpy.full((layers, experts), -1, dtype=numpy.int32)
        self._resident = numpy.zeros((layers, experts), dtype=bool)
        self._tables: deque[tuple[torch.Tensor, Mark]] = deque(
            (self.transfer.buffer(layers, experts, dtype=torch.int32), Passed()) for _ in range(_TABLES)
        )
        self._cooling: list[tuple[int, int]] = []  # slot, boundary that cleared its entry
        self._leave: list[Expert] = []
        self._enter: list[tuple[Expert, int, Mark]] = []
        self._lock = threading.Lock()
        self.slots = 0
        self.rows = torch.empty(0, row_bytes, dtype=torch.uint8, device=device)
        self._free: list[tuple[int, Mark]] = []
        self.allocate(slots)

    def allocate(self, slots: int) -> None:
        """Give a pool without slots its rows; their address is fixed from then on. Nobody may have read it yet."""
        self.slots = slots
        self.rows = torch.zeros(slots, self.rows.shape[1], dtype=torch.uint8, device=self._device)
        # The rows' own zeroing counts as their last use.
        mark = self.transfer.mark()
        self._free = [(slot, mark) for slot in range(slots - 1, -1, -1)]

    def boundary(self) -> None:
        """Between two steps: free what has cooled, set the entries of whose row is there, clear those of who leaves."""
        with self._lock:
            self.step += 1
            if self._cooling and self._cooling[0][1] < self.step:
                mark = self.transfer.mark()
                self._free += [(slot, mark) for slot, cleared in self._cooling if cleared < self.step]
                self._cooling = [(slot, cleared) for slot, cleared in self._cooling if cleared >= self.step]
            if self._enter or self._leave:
                self._change()

    def _change(self) -> None:
        # Rows are copied in the order in which they were asked for, so the first that is not there ends the search.
        ready = list(takewhile(lambda entry: entry[2].done(), self._enter))
        buffer, sent = self._tables[0]
        # Where the device is so far behind that no buffer is free, the next boundary tries again.
        if not (ready or self._leave) or not sent.done():
            return
        for expert in self._leave:
            self._cooling.append((int(self._mirror[expert]), self.step))
            self._mirror[expert] = -1
        for expert, slot, _ in ready:
            self._mirror[expert] = slot
        self._leave = []
        del self._enter[: len(ready)]
        # The whole table (47 KB at the real geometry) in one copy costs less than a kernel that scatters the changes.
        buffer.numpy()[...] = self._mirror
        self.transfer.send(self.table, buffer)
        self._tables.rotate(-1)
        self._tables[-1] = (buffer, self.transfer.mark())

    def evict(self, experts: list[Expert]) -> None:
        """Let experts leave at the next boundary; one that no step reads yet leaves at once."""
        with self._lock:
            for expert in experts:
                self._resident[expert] = False
                waiting = next((entry for entry in self._enter if entry[0] == expert), None)
                if waiting is None:
                    self._leave.append(expert)
                else:
                    self._enter.remove(waiting)
                    self._free.append(waiting[1:])

    def take_slot(self) -> tuple[int, Mark] | None:
        """A slot that no table entry names, or None where there is none yet. It belongs to the caller, who may
        write it once the mark has passed: until then steps that were submitted earlier may read it."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, slot: int, mark: Mark) -> None:
        """Return a slot that was taken and not used."""
        with self._lock:
            self._free.append((slot, mark))

    def enter(self, expert: Expert, slot: int, copied: Mark) -> None:
        """A taken slot holds this expert's row once ``copied`` has passed; steps read it from the boundary on that
        finds it so."""
        with self._lock:
            self._resident[expert] = True
            if expert in self._leave:  # it has not left yet: it stays where it is
                self._leave.remove(expert)
                self._free.append((slot, copied))
            else:
                self._enter.append((expert, slot, copied))

    def resident(self) -> numpy.ndarray:
        """bool ``[layers, experts]``: who holds a slot or has one that is being filled, less who is told to leave."""
        with self._lock:
            return self._resident.copy()

    def free_slots(self) -> int:
        """Slots that hold nobody and are not being filled; slots that cool are counted."""
        with self._lock:
            return len(self._free) + len(self._cooling)

    def take_counts(self, buffer: torch.Tensor) -> Mark:
        """Have the routings since the last call written to a host buffer; the device's counters start at zero again.

        Args:
            buffer: int64 ``[layers, experts]`` from the pool's transfer; valid once the mark has passed.
        """
        self.transfer.take(buffer, self.counts)
        return self.transfer.mark()
