"""The manager: which experts hold a slot, what it does with a bad pack, what it keeps for the next start."""

import os
import time
from pathlib import Path

import numpy
import pytest
import torch
from correction_support import CPU, LAYERS, LaggingDevice, full_pack, row_of
from generators import TINY

from moet_w2.cache import layout
from moet_w2.correction import manager as manager_module
from moet_w2.correction.manager import COUNT_STEPS, WARM_FILE, Manager, read_warm_set
from moet_w2.correction.pool import Pool
from moet_w2.correction.store import PACK


def manage(root: Path, slots: int, eligible=(True, True, True), **options) -> tuple[Manager, Pool]:
    pack = full_pack(root)
    pool = Pool(LAYERS, TINY.experts, slots, pack.row_bytes, CPU)
    now = [0.0]
    manager = Manager(pool, pack, numpy.array(eligible), clock=lambda: now[0], **options)
    manager.now = now
    return manager, pool


def window(**routings: int) -> numpy.ndarray:
    """Counts by expert, written l0e1=5."""
    counts = numpy.zeros((LAYERS, TINY.experts), dtype=numpy.int64)
    for name, number in routings.items():
        counts[int(name[1]), int(name[3])] = number
    return counts


def settle(manager: Manager, counts: numpy.ndarray, passes: int = 6) -> None:
    """Passes and boundaries until nothing moves any more."""
    manager.run_pass(counts)
    for _ in range(passes):
        manager.pool.boundary()
        manager.run_pass(numpy.zeros_like(counts))
    manager.pool.boundary()


def held(pool: Pool) -> set[tuple[int, int]]:
    return {tuple(map(int, e)) for e in (pool.table >= 0).nonzero()}


def test_the_hottest_experts_hold_their_own_rows(tmp_path: Path) -> None:
    manager, pool = manage(tmp_path, 3)
    settle(manager, window(l0e0=1, l0e1=9, l1e2=8, l2e3=7))
    assert held(pool) == {(0, 1), (1, 2), (2, 3)}
    for layer, expert in held(pool):
        assert torch.equal(pool.rows[pool.table[layer, expert]], row_of(layer, expert))
    settle(manager, window(l0e0=50))
    assert held(pool) == {(0, 0), (0, 1), (1, 2)}
    totals = manager.metrics().totals
    assert (totals.promotions, totals.evictions) == (4, 1)
    assert totals.bytes_read == 4 * manager.pack.row_bytes


def test_the_hit_rate_is_by_routing(tmp_path: Path) -> None:
    manager, _ = manage(tmp_path, 1)
    settle(manager, window(l0e1=10))
    manager.run_pass(window(l0e1=6, l0e2=2))
    metrics = manager.metrics()
    assert (metrics.totals.routings, metrics.totals.hits) == (18, 6)
    assert metrics.hit_rate == 6 / 18 and (metrics.slots, metrics.resident) == (1, 1)


@pytest.mark.parametrize(("slots", "expected"), [(0, 0), (1, 1), (LAYERS * TINY.experts + 5, LAYERS * TINY.experts)])
def test_pools_of_every_size(tmp_path: Path, slots: int, expected: int) -> None:
    manager, pool = manage(tmp_path, slots, most_moves=64)
    settle(manager, numpy.ones((LAYERS, TINY.experts), dtype=numpy.int64))
    assert len(held(pool)) == expected


def test_excluded_layers_never_take_a_slot_however_hot(tmp_path: Path) -> None:
    manager, pool = manage(tmp_path, 4, eligible=(True, False, True), most_moves=64)
    reads: list[int] = []
    read = manager.pack.read
    manager.pack.read = lambda layer, expert, row: (reads.append(layer), read(layer, expert, row))
    for _ in range(20):
        counts = numpy.ones((LAYERS, TINY.experts), dtype=numpy.int64)
        counts[1] = 10_000
        settle(manager, counts, passes=2)
        assert not (pool.table[1] >= 0).any()
    assert 1 not in reads and len(held(pool)) == 4


def test_a_row_that_cannot_be_read_leaves_the_expert_on_its_base(tmp_path: Path) -> None:
    manager, pool = manage(tmp_path, 4)
    path = manager.pack.directory / PACK
    content = bytearray(path.read_bytes())
    content[layout.HEAD] ^= 1  # expert (0, 0)
    path.write_bytes(content)
    settle(manager, window(l0e0=9, l0e1=5))
    assert held(pool) == {(0, 1)} and manager.metrics().totals.read_errors == 1
    assert pool.free_slots() == 3


def test_a_pack_removed_while_serving_goes_on_being_read(tmp_path: Path) -> None:
    manager, pool = manage(tmp_path, 2)
    (manager.pack.directory / PACK).unlink()
    settle(manager, window(l0e0=9))
    assert held(pool) == {(0, 0)}


def test_a_failing_pass_ends_neither_thread_nor_server(tmp_path: Path, monkeypatch, caplog) -> None:
    manager, pool = manage(tmp_path, 2)
    calls = []

    def fail_once(counts):
        calls.append(counts)
        if len(calls) == 1:
            raise RuntimeError("made up")

    monkeypatch.setattr(manager, "run_pass", fail_once)
    manager.start()
    for _ in range(16):
        manager.boundary()
    manager.close()
    assert len(calls) == 2 and "a pass failed" in caplog.text


def test_the_warm_set_is_kept_for_the_next_start(tmp_path: Path) -> None:
    manager, pool = manage(tmp_path, 2)
    settle(manager, window(l0e3=9, l2e1=8))
    manager.close()
    assert read_warm_set(manager.pack.directory) == [(0, 3), (2, 1)]
    again, pool = manage(tmp_path, 2)
    again.run_pass(window())
    pool.boundary()
    assert held(pool) == {(0, 3), (2, 1)}


@pytest.mark.parametrize("content", ["", "{}", "[[0]]", '[["x", 1]]'])
def test_a_broken_warm_set_is_no_warm_set(tmp_path: Path, content: str) -> None:
    pack = full_pack(tmp_path)
    (pack.directory / WARM_FILE).write_text(content)
    assert read_warm_set(pack.directory) == []
    (pack.directory / WARM_FILE).write_text("[[9, 0], [0, 99], [1, 1]]")  # from another geometry
    manager, _ = manage(tmp_path, 2, eligible=(True, False, True))
    assert manager._wanted == []


@pytest.mark.parametrize("harm", ["truncated", "unreadable"])
def test_a_pack_that_breaks_while_serving_leaves_everybody_on_the_base(tmp_path: Path, harm: str, caplog) -> None:
    manager, pool = manage(tmp_path, 4)
    settle(manager, window(l0e1=9))
    if harm == "truncated":
        os.truncate(manager.pack.directory / PACK, layout.HEAD)
    else:
        closed = os.open("/", os.O_RDONLY)  # reading a folder is EISDIR, as a bad disk is EIO
        os.dup2(closed, manager.pack._file)
        os.close(closed)
    settle(manager, window(l0e2=50, l1e1=40))
    assert held(pool) == {(0, 1)} and pool.free_slots() == 3
    assert manager.metrics().totals.read_errors == 2
    assert caplog.text.count("2 experts stay on their base") == 1


@pytest.mark.parametrize("where", ["read", "fill"])
def test_a_slot_outlives_whatever_ends_a_pass(tmp_path: Path, monkeypatch, where) -> None:
    """A row that is computed on the GPU, or copied there, can fail with more than an OSError."""
    manager, pool = manage(tmp_path, 1)
    before = pool.free_slots()

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory for a row")

    monkeypatch.setattr(manager.pack if where == "read" else pool.transfer, where, fails)
    with pytest.raises(torch.OutOfMemoryError):
        manager.run_pass(window(l0e1=1000))
    assert pool.free_slots() == before == 1


def test_a_row_that_could_not_be_read_is_asked_for_again_a_minute_later(tmp_path: Path) -> None:
    manager, pool = manage(tmp_path, 1)
    path = manager.pack.directory / PACK
    content = path.read_bytes()
    path.write_bytes(content[: layout.HEAD])
    settle(manager, window(l0e1=1000), passes=20)
    assert manager.metrics().totals.read_errors == 1
    path.write_bytes(content)
    manager.now[0] += 61
    settle(manager, window())
    assert held(pool) == {(0, 1)}


def test_a_boundary_never_waits_and_no_window_is_lost(tmp_path: Path) -> None:
    """The device stands still: nothing is applied, nothing is waited for. Then it runs, and every routing is there."""
    pack, device = full_pack(tmp_path), Standstill(numpy.random.default_rng(0))
    pool = Pool(LAYERS, TINY.experts, 2, pack.row_bytes, CPU, device)
    manager = Manager(pool, pack, numpy.ones(LAYERS, dtype=bool))
    routed = 100 * COUNT_STEPS
    for step in range(routed):
        device.steps.append(lambda step=step: pool.counts[step % LAYERS].add_(1))
        manager.boundary()
    assert (pool.table == -1).all() and manager._windows.qsize() == 2  # buffers; the rest is still in the counters
    device.moves = True
    manager.start()
    while manager.metrics().totals.routings < 2 * COUNT_STEPS * TINY.experts:
        time.sleep(0.001)
    for _ in range(COUNT_STEPS):
        manager.boundary()
    manager.close()
    assert manager.metrics().totals.routings == routed * TINY.experts


def test_what_is_worth_keeping_is_saved_when_nothing_is_routed_any_more(tmp_path: Path, monkeypatch) -> None:
    """vLLM kills its workers when it stops: what close() alone would write would never be written."""
    monkeypatch.setattr(manager_module, "_IDLE_SECONDS", 0.02)
    manager, pool = manage(tmp_path, 1)
    manager.start()
    pool.counts[1, 2] += 5
    for _ in range(COUNT_STEPS):
        manager.boundary()
    deadline = time.monotonic() + 30
    while read_warm_set(manager.pack.directory) != [(1, 2)] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_warm_set(manager.pack.directory) == [(1, 2)]
    manager.close()


class Standstill(LaggingDevice):
    """A device on which nothing runs until it ``moves``; waiting for it before would be for ever."""

    moves = False

    def advance(self) -> None:
        if not self.moves:
            raise AssertionError("somebody waits for the device")
        super().advance()
