"""Packs, keys, pools that are wrong on purpose and a device that lags behind, for the tests of the correction tier."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from generators import TINY, filled_layer

from moet_w2.cache.key import CacheKey
from moet_w2.correction import codes
from moet_w2.correction.pool import Expert, Pool
from moet_w2.correction.store import Pack
from moet_w2.correction.transfer import Passed
from moet_w2.layer import Shard

LAYERS = 3
KEY = CacheKey("checkpoint-a", TINY, Shard(), LAYERS)
CPU = torch.device("cpu")
DONE = Passed()


def full_pack(root: Path, layers=range(LAYERS)) -> Pack:
    """A pack whose rows are the codes of generated layers, seed = layer."""
    pack = Pack(root, KEY)
    for layer in layers:
        _, tensors = filled_layer(TINY, seed=layer)
        for (expert, projection, kind), tensor in tensors.items():
            if kind == "weight":
                pack.put(layer, expert, projection, tensor.view(torch.uint8))
        pack.seal(layer)
    return pack


def row_of(layer: int, expert: int) -> torch.Tensor:
    """The row that :func:`full_pack` holds for an expert."""
    _, tensors = filled_layer(TINY, seed=layer)
    return torch.cat([codes.pack(tensors[expert, p, "weight"].view(torch.uint8)) for p in ("w1", "w3", "w2")])


class Moment:
    """A mark on a :class:`LaggingDevice`."""

    def __init__(self, device: LaggingDevice) -> None:
        self.passed, self._device = False, device

    def done(self) -> bool:
        return self.passed

    def wait(self) -> None:
        while not self.passed:
            self._device.advance()


class LaggingDevice:
    """A stand-in for a GPU: what is submitted runs later, in two streams that an adversary interleaves.

    Work on the steps' stream runs in order, rows are copied in halves on the other stream; which of the two runs next
    is drawn by seed. Source and target of a copy are read and written when it runs, not when it is submitted.
    """

    def __init__(self, chance: numpy.random.Generator) -> None:
        self._chance = chance
        self.steps: deque[Callable[[], object]] = deque()
        self.rows: deque[tuple[Moment | None, Callable[[], object]]] = deque()

    def buffer(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def enter_thread(self) -> None:
        return None

    def send(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.steps.append(lambda: target.copy_(source))

    def take(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.steps.append(lambda: (target.copy_(source), source.zero_()))

    def mark(self) -> Moment:
        moment = Moment(self)
        self.steps.append(lambda: setattr(moment, "passed", True))
        return moment

    def fill(self, target: torch.Tensor, source: torch.Tensor, after: Moment) -> Moment:
        moment, half = Moment(self), len(target) // 2
        self.rows.append((after, lambda: target[:half].copy_(source[:half])))
        self.rows.append((None, lambda: target[half:].copy_(source[half:])))
        self.rows.append((None, lambda: setattr(moment, "passed", True)))
        return moment

    def peek(self, target: torch.Tensor, source: torch.Tensor) -> Moment:
        moment = Moment(self)
        self.rows.append((None, lambda: (target.copy_(source), setattr(moment, "passed", True))))
        return moment

    def advance(self) -> None:
        """Run one piece of work of a stream that can run; returns where there is none."""
        rows_run = bool(self.rows) and (self.rows[0][0] is None or self.rows[0][0].done())
        if rows_run and (not self.steps or self._chance.random() < 0.5):
            self.rows.popleft()[1]()
        elif self.steps:
            self.steps.popleft()()


class NoMark(Pool):
    """Wrong on purpose: counts boundaries that were submitted for steps that have run."""

    def take_slot(self):
        taken = super().take_slot()
        return taken and (taken[0], DONE)


class Eager(Pool):
    """Wrong on purpose: sets an entry without asking whether the row is there."""

    def enter(self, expert: Expert, slot: int, copied) -> None:
        super().enter(expert, slot, DONE)
