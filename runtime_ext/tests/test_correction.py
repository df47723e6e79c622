"""The correction tier: rows, pack, slots, manager; and the race that two-phase eviction prevents."""

from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from generators import PLANE_SHAPES, TINY, filled_layer, mxfp4_codes
from test_reference import relative_error

from moet_w2 import codebook, reference, step_hook
from moet_w2.cache import layout
from moet_w2.cache.key import CacheKey
from moet_w2.config import W2Config
from moet_w2.correction import codes
from moet_w2.correction.manager import WARM_FILE, Manager, read_warm_set
from moet_w2.correction.pool import Pool
from moet_w2.correction.store import PACK, Pack
from moet_w2.correction.tier import PREFILL_TOKENS, Correction, Resident
from moet_w2.errors import CacheError, UnsupportedError
from moet_w2.layer import PROJECTIONS, Shard
from moet_w2.placement import plan

LAYERS = 3
KEY = CacheKey("checkpoint-a", TINY, Shard(), LAYERS)
CPU = torch.device("cpu")


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
    _, tensors = filled_layer(TINY, seed=layer)
    return torch.cat([codes.pack(tensors[expert, p, "weight"].view(torch.uint8)) for p in ("w1", "w3", "w2")])


# ---- rows


@pytest.mark.parametrize(("rows", "cols"), PLANE_SHAPES[:3])
def test_codes_come_back(rows: int, cols: int) -> None:
    source = mxfp4_codes(rows, cols, seed=3).view(torch.uint8)
    packed = codes.pack(source)
    assert packed.numel() == rows * cols // 2
    assert torch.equal(codes.unpack(packed, rows, cols), source)


def test_code_layout_is_the_documented_one() -> None:
    rows, cols = 32, 256
    for row, col in [(0, 0), (8, 0), (7, 9), (15, 127), (3, 16), (20, 130), (31, 255)]:
        nibbles = torch.zeros(rows, cols, dtype=torch.uint8)
        nibbles[row, col] = 0xD
        packed = codes.pack(nibbles[:, 0::2] | nibbles[:, 1::2] << 4)
        r, c = row % 16, col % 128
        g, half, step, k = r % 8, r // 8, c // 16, c % 16
        t, h, high = k % 8 // 2, k % 2, k // 8
        tile = (row // 16) * (cols // 128) + col // 128
        nibble = 4 * high + 2 * half + h
        byte = tile * 1024 + (4 * g + t) * 32 + step * 4 + nibble // 2
        assert packed[byte] == 0xD << 4 * (nibble % 2) and packed.count_nonzero() == 1


def test_a_row_of_the_real_geometry_is_twelve_mebibytes() -> None:
    from moet_w2.geometry import LayerGeometry

    parts = codes.row_slices(LayerGeometry(256, 4096, 2048))
    assert parts["w2"].stop == 12 * 2**20 and [p.start for p in parts.values()] == [0, 4 << 20, 8 << 20]


# ---- the pack


def test_rows_come_back_lazily_and_after_reopening(tmp_path: Path) -> None:
    full_pack(tmp_path).close()
    pack = Pack(tmp_path, KEY)
    row = torch.empty(pack.row_bytes, dtype=torch.uint8)
    for layer, expert in [(2, 3), (0, 0), (1, 2)]:
        assert pack.sealed(layer)
        pack.read(layer, expert, row)
        assert torch.equal(row, row_of(layer, expert))
    pack.close()


def test_only_sealed_layers_count(tmp_path: Path) -> None:
    pack = full_pack(tmp_path, layers=[1])
    assert [pack.sealed(layer) for layer in range(LAYERS)] == [False, True, False]
    pack.put(0, 0, "w1", torch.zeros(TINY.width, TINY.hidden // 2, dtype=torch.uint8))
    assert not pack.sealed(0)
    pack.close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1, "key": "x", "layer": 1, "crc32": []}'])
def test_a_broken_sidecar_vouches_for_nothing(tmp_path: Path, content: str) -> None:
    pack = full_pack(tmp_path)
    pack.close()
    (pack.directory / "pack-001.json").write_text(content)
    again = Pack(tmp_path, KEY)
    assert [again.sealed(layer) for layer in range(LAYERS)] == [True, False, True]
    again.close()


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    directory = layout.folder(tmp_path, KEY)
    directory.mkdir(parents=True)
    (directory / PACK).write_bytes(b"x" * layout.HEAD)
    with pytest.raises(CacheError, match="is not the pack of this checkpoint"):
        Pack(tmp_path, KEY)


def test_a_flipped_bit_and_a_truncated_pack_are_read_errors(tmp_path: Path) -> None:
    pack = full_pack(tmp_path)
    path = pack.directory / PACK
    content = bytearray(path.read_bytes())
    content[layout.HEAD + 5] ^= 1
    path.write_bytes(content)
    row = torch.empty(pack.row_bytes, dtype=torch.uint8)
    with pytest.raises(OSError, match=r"\(0, 0\) w1 is not what its CRC vouches for"):
        pack.read(0, 0, row)
    pack.read(0, 1, row)
    path.write_bytes(content[:-1])
    with pytest.raises(OSError, match="ends 1 bytes early"):
        pack.read(2, 3, row)
    pack.close()
    again = Pack(tmp_path, KEY)
    assert not again.sealed(2)
    again.close()


# ---- computing with rows


def test_a_corrected_expert_computes_with_mxfp4_and_the_others_with_their_base() -> None:
    layer, tensors = filled_layer(TINY)
    slots = torch.tensor([-1, 1, -1, 0], dtype=torch.int32)
    rows = torch.stack([row_of(0, 3), row_of(0, 1)])
    x, weights = torch.randn(5, TINY.hidden), torch.rand(5, 2)
    ids = torch.tensor([[1, 3], [0, 2], [1, 0], [3, -1], [2, 3]])
    mixed = reference.moe(layer, x, weights, ids, 10.0, Resident(rows, slots))
    expected = torch.zeros(5, TINY.hidden, dtype=torch.float64)
    for token in range(5):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            if expert < 0:
                continue
            w1, w2, w3 = (dense(layer, tensors, expert, p, slots[expert] >= 0) for p in PROJECTIONS)
            inner = reference.clamped_swiglu(torch.cat([w1, w3]) @ x[token].double(), 10.0)
            expected[token] += weight * (w2 @ inner)
    assert relative_error(mixed, expected) < 1e-5
    base = reference.moe(layer, x, weights, ids, 10.0)
    assert torch.equal(mixed[1], base[1]) and not torch.allclose(mixed[0], base[0])


def dense(layer, tensors, expert, projection, corrected):
    scale = tensors[expert, projection, "scale"].view(torch.uint8)
    packed = tensors[expert, projection, "weight"]
    if corrected:
        return codebook.mxfp4_values(packed, scale).double()
    two_bit = codebook.to_two_bit(packed)
    values = codebook.two_bit_values(torch.stack((two_bit & 15, two_bit >> 4), dim=-1).flatten(-2))
    return (values * codebook.scale_values(scale).repeat_interleave(32, dim=-1)).double()


# ---- slots


def make_pool(slots: int) -> Pool:
    return Pool(LAYERS, TINY.experts, slots, 64, CPU)


def test_a_slot_is_written_only_after_a_whole_step_without_it() -> None:
    pool = make_pool(1)
    pool.enter((0, 1), pool.take_slot())
    assert pool.table[0, 1] == -1
    pool.boundary()
    assert pool.table[0, 1] == 0 and pool.take_slot() is None
    pool.evict([(0, 1)])
    assert pool.table[0, 1] == 0  # until the boundary
    pool.boundary()
    assert pool.table[0, 1] == -1 and pool.take_slot() is None  # the step after it may not be disturbed
    pool.boundary()
    assert pool.take_slot() == 0


def test_residency_is_what_the_next_boundary_makes_true() -> None:
    pool = make_pool(2)
    pool.enter((1, 2), pool.take_slot())
    assert pool.resident()[1, 2] and pool.free_slots() == 1
    pool.boundary()
    pool.evict([(1, 2)])
    assert not pool.resident().any()


def test_counts_are_taken_once() -> None:
    pool = make_pool(1)
    pool.counts[0, 1] += 5
    assert pool.take_counts()[0, 1] == 5 and pool.take_counts().sum() == 0


class OnePhase(Pool):
    """Wrong on purpose: a slot may be written as soon as its expert is told to leave, while a step still reads it."""

    stale: list = []

    def take_slot(self) -> int | None:
        slot = super().take_slot()
        if slot is None and self._leave and self._leave[0] in self._holder:
            self.stale.append(self._leave.pop(0))
            slot = self._holder.pop(self.stale[-1])
        return slot

    def boundary(self) -> None:
        for expert in self.stale:
            self.table[expert] = -1
        self.stale.clear()
        super().boundary()


def manage_adversarially(pool: Pool, chance: numpy.random.Generator):
    """A manager that moves somebody at every chance, one half of a row at a time; yields between its acts."""
    half = pool.rows.shape[1] // 2
    while True:
        resident = [tuple(map(int, e)) for e in numpy.argwhere(pool.resident())]
        if resident and chance.random() < 0.1:
            pool.evict([resident[int(chance.integers(len(resident)))]])
            yield
        slot = pool.take_slot()
        if slot is None:
            yield
            continue
        here = pool.resident()[0]
        out = [expert for expert in range(TINY.experts) if not here[expert]]
        expert = out[int(chance.integers(len(out)))]
        pool.rows[slot, :half] = expert + 1
        yield
        pool.rows[slot, half:] = expert + 1
        yield
        pool.enter((0, expert), slot)
        yield


def race(pool: Pool, steps: int) -> tuple[int, int]:
    """Steps whose reads a manager's acts fall between, in an order drawn by seed: rows read, and mixtures among them.

    Expert e's row is all bytes e + 1. As a kernel does, a step reads the table once and the rows later.
    """
    chance = numpy.random.default_rng(0)
    manager = manage_adversarially(pool, chance)
    half = pool.rows.shape[1] // 2
    reads = mixtures = 0
    for _ in range(steps):
        pool.boundary()
        for expert, slot in enumerate(pool.table[0].tolist()):
            if slot < 0:
                continue
            reads += 1
            right = True
            for part in (slice(0, half), slice(half, None)):
                for _ in range(int(chance.integers(3))):
                    next(manager)
                right &= bool((pool.rows[slot, part] == expert + 1).all())
            mixtures += not right
        for _ in range(int(chance.integers(6))):
            next(manager)
    return reads, mixtures


def test_ten_thousand_steps_never_read_a_mixture() -> None:
    reads, mixtures = race(make_pool(2), 10_000)
    assert reads > 2_000 and mixtures == 0


def test_one_phase_eviction_is_caught_by_the_same_race() -> None:
    _, mixtures = race(OnePhase(LAYERS, TINY.experts, 2, 64, CPU), 1_000)
    assert mixtures > 0


# ---- the manager


def manage(root: Path, slots: int, eligible=(True, True, True), **options) -> tuple[Manager, Pool]:
    pack = full_pack(root)
    pool = Pool(LAYERS, TINY.experts, slots, pack.row_bytes, CPU)
    now = [0.0]
    manager = Manager(pool, pack, numpy.array(eligible), clock=lambda: now[0], **options)
    manager.now = now
    return manager, pool


def window(**routings: int) -> torch.Tensor:
    """Counts by expert, written l0e1=5."""
    counts = torch.zeros(LAYERS, TINY.experts, dtype=torch.int64)
    for name, number in routings.items():
        counts[int(name[1]), int(name[3])] = number
    return counts


def settle(manager: Manager, counts: torch.Tensor, passes: int = 6) -> None:
    """Passes and boundaries until nothing moves any more."""
    manager.run_pass(counts)
    for _ in range(passes):
        manager.pool.boundary()
        manager.run_pass(torch.zeros_like(counts))
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
    assert (manager.stats.promotions, manager.stats.evictions) == (4, 1)
    assert manager.stats.bytes_read == 4 * manager.pack.row_bytes


def test_the_hit_rate_is_by_routing(tmp_path: Path) -> None:
    manager, _ = manage(tmp_path, 1)
    settle(manager, window(l0e1=10))
    manager.run_pass(window(l0e1=6, l0e2=2))
    assert (manager.stats.routings, manager.stats.hits) == (18, 6)


@pytest.mark.parametrize(("slots", "expected"), [(0, 0), (1, 1), (LAYERS * TINY.experts + 5, LAYERS * TINY.experts)])
def test_pools_of_every_size(tmp_path: Path, slots: int, expected: int) -> None:
    manager, pool = manage(tmp_path, slots, most_moves=64)
    settle(manager, torch.ones(LAYERS, TINY.experts, dtype=torch.int64))
    assert len(held(pool)) == expected


def test_excluded_layers_never_take_a_slot_however_hot(tmp_path: Path) -> None:
    manager, pool = manage(tmp_path, 4, eligible=(True, False, True), most_moves=64)
    reads: list[int] = []
    read = manager.pack.read
    manager.pack.read = lambda layer, expert, row: (reads.append(layer), read(layer, expert, row))
    for _ in range(20):
        counts = torch.ones(LAYERS, TINY.experts, dtype=torch.int64)
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
    assert held(pool) == {(0, 1)} and manager.stats.read_errors >= 1
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


# ---- put together


def correction(root: Path, prefill: bool = True, exclude=()) -> Correction:
    layers = plan(W2Config(delta_exclude_layers=exclude), LAYERS)
    return Correction(layers, KEY, root, 4, "freq", prefill, CPU)


def test_codes_are_written_while_a_layer_is_built_and_once(tmp_path: Path) -> None:
    made = correction(tmp_path, exclude=(1,))
    for key in range(LAYERS):
        layer, tensors = filled_layer(TINY, seed=key)
        fresh = type(layer)(key, TINY, layer.placement, torch.empty_like(layer.storage))
        made.created(fresh)
        for place, tensor in tensors.items():
            fresh.put(*place, tensor)
        made.loaded(fresh)
        assert torch.equal(fresh.storage, layer.storage)
    assert [made.pack.sealed(key) for key in range(LAYERS)] == [True, False, True]
    assert not any(made.wants_codes(key) for key in range(LAYERS))
    row = torch.empty(made.pack.row_bytes, dtype=torch.uint8)
    made.pack.read(2, 1, row)
    assert torch.equal(row, row_of(2, 1))


def test_excluded_layers_are_neither_counted_nor_corrected(tmp_path: Path) -> None:
    made = correction(tmp_path, exclude=(1,))
    assert made.resident(1, torch.tensor([[0, 1]])) is None
    assert made.pool.counts.sum() == 0
    assert made.resident(0, torch.tensor([[0, 1], [0, -1]])) is not None
    assert made.pool.counts[0].tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize("prefill", [True, False])
def test_prefill_reads_slots_only_where_it_may(tmp_path: Path, prefill: bool) -> None:
    made = correction(tmp_path, prefill=prefill)
    many = torch.zeros(PREFILL_TOKENS + 1, 1, dtype=torch.int64)
    assert (made.resident(0, many) is not None) is prefill
    assert made.resident(0, many[1:]) is not None
    assert made.pool.counts[0, 0] == 2 * PREFILL_TOKENS + 1  # counted all the same


def test_boundaries_come_before_real_steps_only() -> None:
    class Runner:
        def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False):
            return scheduler_output

    seen = []
    step_hook.attach(Runner, lambda: seen.append(1))
    runner = Runner()
    assert runner.execute_model("a") == "a" and runner.execute_model("b", dummy_run=True) == "b"
    assert runner.execute_model("c", None, True) == "c" and len(seen) == 1
    with pytest.raises(UnsupportedError, match="is not the one of the pinned vLLM"):
        step_hook.attach(SimpleNamespace, lambda: None)
