"""The slots and the table that says who holds them. Kernels read the table; only step boundaries change it.

A slot's life, for an expert that leaves and one that comes:

    boundary k      table[leaver] = -1          the steps before k have read the slot, step k does not
    step k          runs a whole step without the slot
    boundary k + 1  the slot is free to write
    between         the newcomer's row is copied in; no table entry names the slot
    boundary m      table[newcomer] = slot      step m is the first to read it

So no step ever reads a slot that is being written. :meth:`Pool.boundary` runs on the thread, and on a GPU on the
stream, that runs the steps; the rest belongs to the manager's thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy
import torch

Expert = tuple[int, int]
"""(layer, expert)."""


@dataclass
class _Cooling:
    slot: int
    step: int


class Pool:
    """A fixed number of rows, and ``table[layer, expert]`` -> slot or -1.

    Attributes:
        rows: uint8 ``[slots, row_bytes]`` on the device.
        table: int32 ``[layers, experts]`` on the device, at a fixed address.
        counts: int64 ``[layers, experts]`` on the device, routings since they were taken last.
        step: number of boundaries so far.
    """

    def __init__(self, layers: int, experts: int, slots: int, row_bytes: int, device: torch.device) -> None:
        self.slots, self.step = slots, 0
        self.rows = torch.zeros(slots, row_bytes, dtype=torch.uint8, device=device)
        self.table = torch.full((layers, experts), -1, dtype=torch.int32, device=device)
        self.counts = torch.zeros(layers, experts, dtype=torch.int64, device=device)
        self._holder: dict[Expert, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._cooling: list[_Cooling] = []
        self._leave: list[Expert] = []
        self._enter: list[tuple[Expert, int]] = []
        self._lock = threading.Lock()

    def boundary(self) -> None:
        """Between two steps: free what has cooled, set the entries of who is ready, clear those of who leaves."""
        with self._lock:
            self.step += 1
            self._free += [cooling.slot for cooling in self._cooling if cooling.step < self.step]
            self._cooling = [cooling for cooling in self._cooling if cooling.step >= self.step]
            for expert, slot in self._enter:  # first, because who enters may have been told to leave already
                self.table[expert] = slot
                self._holder[expert] = slot
            for expert in self._leave:
                self.table[expert] = -1
                self._cooling.append(_Cooling(self._holder.pop(expert), self.step))
            self._leave, self._enter = [], []

    def evict(self, experts: list[Expert]) -> None:
        """Let experts leave at the next boundary."""
        with self._lock:
            self._leave += experts

    def take_slot(self) -> int | None:
        """A slot that no step reads, or None where there is none yet. It belongs to the caller."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Return a slot that was taken and not used."""
        with self._lock:
            self._free.append(slot)

    def enter(self, expert: Expert, slot: int) -> None:
        """A taken slot now holds this expert's row, whole; steps read it from the next boundary on."""
        with self._lock:
            self._enter.append((expert, slot))

    def resident(self) -> numpy.ndarray:
        """bool ``[layers, experts]``: who holds a slot or will at the next boundary, less who leaves then."""
        flags = numpy.zeros(self.table.shape, dtype=bool)
        with self._lock:
            for expert in [*self._holder, *(expert for expert, _ in self._enter)]:
                flags[expert] = True
            for expert in self._leave:
                flags[expert] = False
        return flags

    def free_slots(self) -> int:
        """Slots that hold nobody, cooling ones included."""
        with self._lock:
            return self.slots - len(self._holder) - len(self._enter)

    def take_counts(self) -> torch.Tensor:
        """The routings since the last call, on the CPU; the device's counters start again at zero."""
        taken = self.counts.cpu().clone()
        self.counts.sub_(taken.to(self.counts.device))
        return taken
