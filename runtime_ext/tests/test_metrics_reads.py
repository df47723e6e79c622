"""What mapped layers read: counted exactly on a CPU, and fetched from a device that lags, without waiting for it."""

from __future__ import annotations

import numpy
import pytest
import torch
from correction_support import CPU, LaggingDevice, row_of
from generators import TINY, filled_layer

from moet_w2 import reference
from moet_w2.correction.tier import Resident
from moet_w2.geometry import LayerGeometry
from moet_w2.metrics import reads
from moet_w2.metrics.reads import MappedReads

EXPERT = TINY.nbytes // TINY.experts
SCALES = TINY.parts["sc13"].row_bytes + TINY.parts["sc2"].row_bytes


def counting(layers: int = 2) -> tuple[MappedReads, list[torch.Tensor]]:
    made = MappedReads(range(5, 5 + layers), CPU)
    return made, [made.words(5 + row, TINY) for row in range(layers)]


def test_entries_become_bytes_of_their_layer() -> None:
    """Both words of layers whose experts differ in size."""
    wide = LayerGeometry(TINY.experts, 512, 128)
    made = MappedReads((3, 9), CPU)
    first, second = made.words(3, TINY), made.words(9, wide)
    first += torch.tensor([2, 5])
    second += torch.tensor([1, 0])
    assert made.counts.tolist() == [[2, 5], [1, 0]]
    assert made.look() == 2 * EXPERT + 5 * SCALES + wide.nbytes // TINY.experts


def test_what_was_read_before_it_begins_is_not_counted() -> None:
    made, (first, second) = counting()
    first += 3
    made.begin()
    assert made.look() == 0
    second += torch.tensor([1, 0])
    assert made.look() == EXPERT


def test_the_address_stays() -> None:
    """A captured graph adds to it for as long as the worker lives."""
    made, words = counting()
    before = [each.data_ptr() for each in words]
    made.begin()
    made.look()
    assert [each.data_ptr() for each in words] == before == [made.counts.data_ptr(), made.counts.data_ptr() + 16]


# ---- beside the steps


def test_no_look_waits_for_a_device_that_does_not_answer(monkeypatch) -> None:
    monkeypatch.setattr(reads, "_PATIENCE_SECONDS", 0.02)
    device = LaggingDevice(numpy.random.default_rng(0))
    made = MappedReads((0,), CPU, device)
    words = made.words(0, TINY)
    words += torch.tensor([1, 0])
    assert made.look() == made.look() == 0 and len(device.rows) == 1  # the copy is asked for once
    words += torch.tensor([1, 0])
    device.advance()
    assert made.look() == 2 * EXPERT  # as it was when the copy ran
    words += torch.tensor([0, 1])
    assert made.look() == 2 * EXPERT
    device.advance()
    assert made.look() == 2 * EXPERT + SCALES


# ---- a CPU's calls


def by_hand(ids: list[list[int]], slots: list[int]) -> list[int]:
    """Distinct experts of a call, those without and with a slot."""
    routed = {expert for row in ids for expert in row if expert >= 0}
    corrected = sum(slots[expert] >= 0 for expert in routed)
    return [len(routed) - corrected, corrected]


@pytest.mark.parametrize("seed", range(6))
def test_a_call_counts_what_it_reads(seed: int, monkeypatch) -> None:
    """Against the bytes that the reference takes from the layer."""
    draw = torch.Generator().manual_seed(seed)
    layer, _ = filled_layer(TINY)
    slots = torch.tensor([-1, 1, -1, 0], dtype=torch.int32) if seed % 2 else None
    resident = None if slots is None else Resident(torch.stack([row_of(0, 3), row_of(0, 1)]), slots)
    ids = torch.randint(-1, TINY.experts, (seed + 1, 2), generator=draw)
    made, (words, _) = counting()
    reads.count(words, ids, slots)
    assert words.tolist() == by_hand(ids.tolist(), [-1] * 4 if slots is None else slots.tolist())
    taken = Taken(layer)
    monkeypatch.setattr(type(layer), "view", taken.view)
    x = torch.randn(len(ids), TINY.hidden, generator=draw)
    reference.moe(layer, x, torch.ones(ids.shape), ids, 10.0, resident)
    assert taken.nbytes == made.look()


class Taken:
    """Counts the bytes that are indexed out of a layer's parts."""

    def __init__(self, layer) -> None:
        self.nbytes, self._views = 0, layer._views

    def view(self, part: str) -> Taken._Part:
        return self._Part(self, self._views[part])

    class _Part:
        def __init__(self, taken: Taken, rows: torch.Tensor) -> None:
            self._taken, self._rows = taken, rows

        def __getitem__(self, index) -> torch.Tensor:
            found = self._rows[index]
            self._taken.nbytes += found.nbytes
            return found


def test_a_call_that_routes_nowhere_reads_nothing() -> None:
    _, (words, _) = counting()
    reads.count(words, torch.full((3, 2), -1), None)
    reads.count(words, torch.full((3, 2), -1), torch.zeros(4, dtype=torch.int32))
    assert words.tolist() == [0, 0]
