"""The correction tier's slots on a real device: 10,000 steps race against promotions and evictions in every one.

A step is a replayed graph. It is submitted while up to AHEAD earlier ones have not run, as under async scheduling, and
between two submissions somebody is moved. Wrong variants of the pool must be caught by the same race. Rows lie in
pinned memory that never changes, so what a step reads is a whole row, a base, or a fault.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import pytest
import torch
from correction_support import DONE, Eager, NoMark

from moet_w2.cache.key import CacheKey
from moet_w2.correction import codes
from moet_w2.correction.manager import COUNT_STEPS, Manager
from moet_w2.correction.pool import Expert, Pool
from moet_w2.correction.store import Pack
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import PROJECTIONS, Shard, W2Layer
from moet_w2.placement import Placement

pytestmark = pytest.mark.gpu

STEPS, AHEAD, SLOTS, EXPERTS = 10_000, 4, 6, 12
ROW_BYTES = 1 << 20
CYCLES = 400_000
"""Clock cycles, some 0.2 ms: what the host takes to submit a step."""


class Delays(NamedTuple):
    """Cycles that a step waits on the device, and that a row's copy waits at most."""

    step: int = CYCLES
    copy: int = 3 * CYCLES


LAGGING = Delays(step=4 * CYCLES, copy=CYCLES)
"""The device is always AHEAD steps behind, and rows are copied before it has caught up."""
GEOMETRY = LayerGeometry(EXPERTS, 512, 256)


class OnePhase(Pool):
    """Wrong on purpose: a slot may be written as soon as its expert is told to leave."""

    def evict(self, experts: list[Expert]) -> None:
        super().evict(experts)
        self._free += [(int(self._mirror[expert]), DONE) for expert in experts if expert in self._leave]

    def boundary(self) -> None:
        super().boundary()
        self._cooling.clear()


def pinned_rows(row_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (EXPERTS, row_bytes), dtype=torch.uint8, generator=generator).pin_memory()


def gather(pool: Pool, every_row: torch.Tensor, delays: Delays) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """A step that reads the table, waits, and reads all rows: experts that hold a slot, and those among them whose
    row is another's or half of one."""
    device_rows = every_row.cuda()

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        slots = pool.table[0].clone()
        torch.cuda._sleep(delays.step)
        held = slots >= 0
        whole = (pool.rows[slots.long().clamp(min=0)] == device_rows).all(1)
        return held.sum(), (held & ~whole).sum()

    return step


def kernel_layer(every_row: torch.Tensor) -> W2Layer:
    """A layer on the device whose FP4 codes are written to ``every_row`` ``[experts, row_bytes]``."""
    storage = torch.zeros(GEOMETRY.nbytes, dtype=torch.uint8, device="cuda")
    layer, part = W2Layer(0, GEOMETRY, Placement.DEVICE, storage), codes.row_slices(GEOMETRY)

    def keep(expert: int, projection: str, weight: torch.Tensor) -> None:
        every_row[expert, part[projection]] = codes.pack(weight).cpu()

    layer.on_codes = keep
    generator = torch.Generator().manual_seed(1)
    for expert in range(EXPERTS):
        for projection in PROJECTIONS:
            shape = (GEOMETRY.width, GEOMETRY.hidden) if projection != "w2" else (GEOMETRY.hidden, GEOMETRY.width)
            weight = torch.randint(0, 256, (shape[0], shape[1] // 2), dtype=torch.uint8, generator=generator)
            scale = torch.randint(118, 123, (shape[0], shape[1] // 32), dtype=torch.uint8, generator=generator)
            layer.put(expert, projection, "weight", weight.cuda())
            layer.put(expert, projection, "scale", scale.view(torch.float8_e8m0fnu).cuda())
    layer.on_codes = None
    return layer


def kernel_step(
    pool: Pool, layer: W2Layer, every_row: torch.Tensor, delays: Delays
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """A step of the expert operator. Token t goes to expert t alone, so row t of an output is the base's or the
    corrected expert's, bit for bit."""
    from moet_w2.kernels.experts import experts

    generator = torch.Generator().manual_seed(2)
    x = torch.randn(EXPERTS, GEOMETRY.hidden, generator=generator).bfloat16().cuda()
    ids = torch.arange(EXPERTS, dtype=torch.int32, device="cuda").unsqueeze(-1)
    weights = torch.ones(EXPERTS, 1, device="cuda")

    def compute(rows: torch.Tensor | None, slots: torch.Tensor | None) -> torch.Tensor:
        counts = pool.counts[0]
        return experts(x, weights, ids, layer.storage, EXPERTS, GEOMETRY.width, 10.0, rows, slots, counts)

    base = compute(None, None)
    corrected = compute(every_row.cuda(), torch.arange(EXPERTS, dtype=torch.int32, device="cuda"))
    assert not (base == corrected).all(1).any()

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        torch.cuda._sleep(delays.step)  # so that the device lags behind what is submitted
        out = compute(pool.rows, pool.table[0])
        fp4 = (out == corrected).all(1)
        return fp4.sum(), (~(fp4 | (out == base).all(1))).sum()

    return step


def captured(step: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of a step, and the int64 ``[2]`` that it adds its results to."""
    totals = torch.zeros(2, dtype=torch.int64, device="cuda")

    def whole() -> None:
        totals.add_(torch.stack(step()))

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        whole()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole()
    totals.zero_()
    return graph, totals


def race(pool: Pool, every_row: torch.Tensor, graph: torch.cuda.CUDAGraph, steps: int, delays: Delays) -> int:
    """Move somebody between any two steps; promotions. Waits for a step only to keep AHEAD of them in flight."""
    chance, promotions = numpy.random.default_rng(0), 0
    flying: deque[torch.cuda.Event] = deque()
    for _ in range(steps):
        pool.boundary()
        graph.replay()
        flying.append(torch.cuda.Event())
        flying[-1].record()
        here = pool.resident()[0]
        inside, outside = numpy.flatnonzero(here), numpy.flatnonzero(~here)
        in_table = [expert for expert in inside if pool._mirror[0, expert] >= 0]
        if in_table:
            pool.evict([(0, int(chance.choice(in_table)))])
        if len(outside) and (taken := pool.take_slot()) is not None:
            slot, free = taken
            expert = int(chance.choice(outside))
            jam(pool, int(chance.integers(delays.copy)))
            pool.enter((0, expert), slot, pool.transfer.fill(pool.rows[slot], every_row[expert], free))
            promotions += 1
        if len(flying) > AHEAD:
            flying.popleft().synchronize()
    torch.cuda.synchronize()
    return promotions


def jam(pool: Pool, cycles: int) -> None:
    """Hold the rows' stream up, at times for longer than steps take."""
    with torch.cuda.stream(pool.transfer._beside):
        torch.cuda._sleep(cycles)


def gather_race(kind: type[Pool], steps: int, delays: Delays) -> tuple[int, int, int]:
    """Slots read, faults among them, promotions."""
    every_row = pinned_rows(ROW_BYTES)
    pool = kind(1, EXPERTS, SLOTS, ROW_BYTES, torch.device("cuda", 0))
    graph, totals = captured(gather(pool, every_row, delays))
    promotions = race(pool, every_row, graph, steps, delays)
    return int(totals[0]), int(totals[1]), promotions


def kernel_race(kind: type[Pool], steps: int, delays: Delays) -> tuple[int, int, int]:
    every_row = torch.zeros(EXPERTS, GEOMETRY.correction_row_bytes, dtype=torch.uint8).pin_memory()
    layer = kernel_layer(every_row)
    pool = kind(1, EXPERTS, SLOTS, every_row.shape[1], torch.device("cuda", 0))
    graph, totals = captured(kernel_step(pool, layer, every_row, delays))
    promotions = race(pool, every_row, graph, steps, delays)
    return int(totals[0]), int(totals[1]), promotions


RACES = {"gather": gather_race, "kernels": kernel_race}


@pytest.mark.parametrize("delays", [Delays(), LAGGING], ids=["copies lag", "steps lag"])
@pytest.mark.parametrize("kind", RACES)
def test_ten_thousand_steps_read_no_mixture(kind: str, delays: Delays) -> None:
    started = time.perf_counter()
    reads, faults, promotions = RACES[kind](Pool, STEPS, delays)
    print(f"\n{kind}: {STEPS} steps, {promotions} promotions, {reads} reads of slots, {faults} faults, ", end="")
    print(f"{time.perf_counter() - started:.1f} s")
    assert faults == 0 and promotions > STEPS // 10 and reads > STEPS // 10


@pytest.mark.parametrize(("wrong", "delays"), [(OnePhase, LAGGING), (NoMark, LAGGING), (Eager, Delays())])
@pytest.mark.parametrize("kind", RACES)
def test_a_wrong_pool_is_caught_by_the_same_race(kind: str, wrong: type[Pool], delays: Delays) -> None:
    reads, faults, promotions = RACES[kind](wrong, STEPS // 5, delays)
    print(f"\n{kind}, {wrong.__name__}: {promotions} promotions, {reads} reads of slots, {faults} faults")
    assert reads > 0 and faults > 0


def test_the_manager_fills_slots_from_the_pack_and_counts_every_routing(tmp_path: Path) -> None:
    """The whole tier: the routing kernel counts in a graph, the thread reads rows, the table follows; no step waits."""
    every_row = torch.zeros(EXPERTS, GEOMETRY.correction_row_bytes, dtype=torch.uint8)
    layer = kernel_layer(every_row)
    pack, part = Pack(tmp_path, CacheKey("generated", GEOMETRY, Shard(), 1)), codes.row_slices(GEOMETRY)
    for expert in range(EXPERTS):
        for projection in PROJECTIONS:
            rows, cols = (GEOMETRY.width, GEOMETRY.hidden) if projection != "w2" else (GEOMETRY.hidden, GEOMETRY.width)
            pack.put(0, expert, projection, codes.unpack(every_row[expert, part[projection]], rows, cols))
    pack.seal(0)
    pool = Pool(1, EXPERTS, SLOTS, pack.row_bytes, torch.device("cuda", 0))
    graph, totals = captured(kernel_step(pool, layer, every_row, Delays()))
    pool.counts.zero_()
    manager = Manager(pool, pack, numpy.ones(1, dtype=bool))
    manager.start()
    steps = 400 * COUNT_STEPS
    for _ in range(steps):
        torch.cuda.set_sync_debug_mode("error")  # for torch's own calls: one that waits raises
        manager.boundary()
        torch.cuda.set_sync_debug_mode("default")
        graph.replay()
    torch.cuda.synchronize()
    deadline = time.monotonic() + 30
    while manager._windows.qsize() and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(2 * COUNT_STEPS):
        manager.boundary()
    torch.cuda.synchronize()
    manager.close()
    counted = manager.metrics().totals
    assert counted.routings == steps * EXPERTS
    assert counted.read_errors == 0 and counted.promotions >= SLOTS
    held = {expert: int(slot) for expert, slot in enumerate(pool.table[0].tolist()) if slot >= 0}
    assert len(held) == SLOTS and int(totals[0]) > 0 and int(totals[1]) == 0
    for expert, slot in held.items():
        assert torch.equal(pool.rows[slot].cpu(), every_row[expert])
