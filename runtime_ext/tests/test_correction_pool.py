"""Slots, their table, and the races that two phases and marks prevent."""

import queue
import threading
from collections.abc import Iterator

import numpy
import pytest
import torch
from correction_support import CPU, DONE, LAYERS, Eager, LaggingDevice, Moment, NoMark, row_of
from generators import TINY, filled_layer

from moet_w2 import reference
from moet_w2.correction.pool import Expert, Pool
from moet_w2.correction.tier import Resident
from moet_w2.correction.transfer import CudaTransfer

ROW_BYTES = 64


def make_pool(slots: int) -> Pool:
    return Pool(LAYERS, TINY.experts, slots, ROW_BYTES, CPU)


def occupy(pool: Pool, expert: Expert, copied=DONE) -> None:
    pool.enter(expert, pool.take_slot()[0], copied)


def test_a_slot_is_written_only_after_a_whole_step_without_it() -> None:
    pool = make_pool(1)
    occupy(pool, (0, 1))
    assert pool.table[0, 1] == -1
    pool.boundary()
    assert pool.table[0, 1] == 0 and pool.take_slot() is None
    pool.evict([(0, 1)])
    assert pool.table[0, 1] == 0  # until the boundary
    pool.boundary()
    assert pool.table[0, 1] == -1 and pool.take_slot() is None  # the step after it may not be disturbed
    pool.boundary()
    assert pool.take_slot()[0] == 0


def test_an_entry_is_set_once_its_row_is_there() -> None:
    pool, copied = make_pool(2), Moment(LaggingDevice(numpy.random.default_rng(0)))
    occupy(pool, (0, 1), copied)
    occupy(pool, (0, 2))  # copied after it, so not looked at before it
    for _ in range(3):
        pool.boundary()
        assert (pool.table == -1).all() and pool.resident()[0, 1]
    copied.passed = True
    pool.boundary()
    assert pool.table[0].tolist() == [-1, 0, 1, -1]


def test_residency_is_what_the_next_boundary_makes_true() -> None:
    pool = make_pool(2)
    occupy(pool, (1, 2))
    assert pool.resident()[1, 2] and pool.free_slots() == 1
    pool.boundary()
    pool.evict([(1, 2)])
    assert not pool.resident().any()


def test_who_leaves_before_entering_gives_the_slot_back_at_once() -> None:
    pool = make_pool(1)
    occupy(pool, (0, 1), Moment(LaggingDevice(numpy.random.default_rng(0))))
    pool.evict([(0, 1)])
    slot, mark = pool.take_slot()
    assert slot == 0 and not mark.done()  # its row is still being written: the next copy waits for that
    pool.boundary()
    assert (pool.table == -1).all()


def test_who_comes_back_before_leaving_keeps_the_slot() -> None:
    pool = make_pool(2)
    occupy(pool, (0, 1))
    pool.boundary()
    pool.evict([(0, 1)])
    occupy(pool, (0, 1))
    assert pool.resident()[0, 1] and pool.free_slots() == 1
    pool.boundary()
    assert pool.table[0, 1] == 0


def test_counts_are_taken_once() -> None:
    pool = make_pool(1)
    buffer = pool.transfer.buffer(LAYERS, TINY.experts, dtype=torch.int64)
    pool.counts[0, 1] += 5
    pool.take_counts(buffer).wait()
    assert buffer[0, 1] == 5 and buffer.sum() == 5
    pool.take_counts(buffer).wait()
    assert buffer.sum() == 0


def test_slots_can_come_later() -> None:
    pool = make_pool(0)
    assert pool.take_slot() is None and pool.rows.shape == (0, ROW_BYTES)
    table = pool.table.data_ptr()
    pool.allocate(2)
    assert pool.rows.shape == (2, ROW_BYTES) and pool.table.data_ptr() == table
    occupy(pool, (0, 0))
    pool.boundary()
    assert pool.table[0, 0] == 0


# ---- the race


class OnePhase(Pool):
    """Wrong on purpose: a slot may be written as soon as its expert is told to leave, while a step still reads it."""

    def evict(self, experts: list[Expert]) -> None:
        super().evict(experts)
        self._free += [(int(self._mirror[expert]), DONE) for expert in self._leave]

    def boundary(self) -> None:
        super().boundary()
        self._cooling.clear()


class NoWholeStep(Pool):
    """Wrong on purpose: a slot is free at the boundary that clears its entry, with a mark that has passed. On a device
    that lags behind, the steps before that boundary still run."""

    def boundary(self) -> None:
        super().boundary()
        self._free += [(slot, DONE) for slot, _ in self._cooling]
        self._cooling.clear()


def move_somebody(pool: Pool, staging: Iterator[torch.Tensor], chance: numpy.random.Generator) -> None:
    """One act of a manager that moves whoever it can. Expert e's row is all bytes e + 1."""
    here = pool.resident()[0]
    inside, outside = numpy.flatnonzero(here), numpy.flatnonzero(~here)
    if len(inside) and chance.random() < 0.6:
        pool.evict([(0, int(chance.choice(inside)))])
    taken = pool.take_slot() if len(outside) else None
    if taken is not None:
        slot, free = taken
        expert, row = int(chance.choice(outside)), next(staging)
        row.fill_(expert + 1)
        pool.enter((0, expert), slot, pool.transfer.fill(pool.rows[slot], row, free))


def fresh_rows() -> Iterator[torch.Tensor]:
    while True:
        yield torch.empty(ROW_BYTES, dtype=torch.uint8)


def lagging_race(kind: type[Pool], steps: int, ahead: int) -> tuple[int, int, int]:
    """Steps on a device that lags up to ``ahead`` of them behind: slots read, mixtures among them, table changes.

    As a kernel does, a step reads the table once and the rows later, in two pieces of work.
    """
    chance = numpy.random.default_rng(0)
    device = LaggingDevice(chance)
    pool = kind(1, TINY.experts, 2, ROW_BYTES, CPU, device)
    half, staging, seen, tables = ROW_BYTES // 2, fresh_rows(), [], set()
    table, rows = pool.table[0].numpy(), pool.rows.numpy()
    submitted: list[Moment] = []

    def read(found: list[int], part: slice) -> None:
        if part.start == 0:
            found[:] = table.tolist()
            tables.add((len(submitted), *found))
        for expert, slot in enumerate(found):
            if slot >= 0:
                seen.append(set(rows[slot, part].tolist()) == {expert + 1})

    for _ in range(steps):
        pool.boundary()
        found: list[int] = []
        for part in (slice(0, half), slice(half, None)):
            device.steps.append(lambda found=found, part=part: read(found, part))
        submitted.append(device.mark())
        move_somebody(pool, staging, chance)
        for _ in range(int(chance.integers(6))):
            device.advance()
        if len(submitted) > ahead:
            submitted[-1 - ahead].wait()
    submitted[-1].wait()
    return len(seen), seen.count(False), len(tables)


@pytest.mark.parametrize("ahead", [0, 2])
def test_ten_thousand_steps_never_read_a_mixture(ahead: int) -> None:
    """Also where step N + 2 is submitted before step N has run."""
    reads, mixtures, tables = lagging_race(Pool, 10_000, ahead)
    assert reads > 10_000 and tables > 1_000 and mixtures == 0


@pytest.mark.parametrize("kind", [OnePhase, NoWholeStep, NoMark, Eager])
def test_each_way_to_do_it_wrong_is_caught_by_the_same_race(kind: type[Pool]) -> None:
    assert lagging_race(kind, 1_500, 2)[1] > 0


def threaded_race(kind: type[Pool], steps: int) -> tuple[set[tuple[bool, ...]], int]:
    """Real steps of a real layer beside a thread that moves somebody all the time.

    Token t goes to expert t alone, so row t of a legal output is that of the base or that of the corrected expert.

    Returns:
        which experts were corrected, for each step; and how many outputs were neither.
    """
    layer, _ = filled_layer(TINY, seed=0)
    experts = TINY.experts
    every_row = torch.stack([row_of(0, expert) for expert in range(experts)])
    generator = torch.Generator().manual_seed(0)
    x, ids = torch.randn(experts, TINY.hidden, generator=generator), torch.arange(experts).unsqueeze(-1)
    weights = torch.ones(experts, 1)

    def step(resident: Resident | None) -> torch.Tensor:
        return reference.moe(layer, x, weights, ids, 10.0, resident)

    base, corrected = step(None), step(Resident(every_row, torch.arange(experts, dtype=torch.int32)))
    assert not (base == corrected).all(1).any()
    pool = kind(1, experts, 2, every_row.shape[1], CPU)
    chance, begun = numpy.random.default_rng(0), queue.SimpleQueue()

    def manage() -> None:
        while begun.get():  # a step has begun: move somebody while it runs
            here = pool.resident()[0]
            if len(inside := numpy.flatnonzero(here)) == 2:
                pool.evict([(0, int(chance.choice(inside)))])
            if (taken := pool.take_slot()) is not None:
                expert = int(chance.choice(numpy.flatnonzero(~here)))
                pool.enter((0, expert), taken[0], pool.transfer.fill(pool.rows[taken[0]], every_row[expert], taken[1]))

    thread = threading.Thread(target=manage)
    thread.start()
    tiers, mixtures = set(), 0
    for _ in range(steps):
        pool.boundary()
        begun.put(True)
        out = step(Resident(pool.rows, pool.table[0]))
        fp4 = (out == corrected).all(1)
        mixtures += int((~(fp4 | (out == base).all(1))).sum())
        tiers.add(tuple(fp4.tolist()))
    begun.put(False)
    thread.join()
    return tiers, mixtures


def test_outputs_beside_a_thread_are_of_one_tier_or_the_other() -> None:
    tiers, mixtures = threaded_race(Pool, 300)
    assert mixtures == 0 and len(tiers) >= 4  # of the eleven ways in which two slots may be held


def test_one_phase_eviction_beside_a_thread_is_caught() -> None:
    assert threaded_race(OnePhase, 100)[1] > 0


def test_pinned_buffers_lie_in_host_memory_while_a_gpu_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM builds a model with the GPU as torch's default device; only host memory can be pinned."""
    zeros = torch.zeros

    def pinnable(*shape: object, pin_memory: bool, **given: object) -> torch.Tensor:
        made = zeros(*shape, **given)
        if made.device.type != "cpu":
            raise RuntimeError("Only dense CPU tensors can be pinned")
        assert pin_memory
        return made

    monkeypatch.setattr(torch, "zeros", pinnable)
    transfer = object.__new__(CudaTransfer)
    with torch.device("meta"):
        assert transfer.buffer(2, 3, dtype=torch.int32).shape == (2, 3)
