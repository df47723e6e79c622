"""The correction tier: the pack, computing with its rows, and the whole put together."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from correction_support import CPU, KEY, LAYERS, full_pack, row_of
from generators import TINY, filled_layer
from test_reference import relative_error

from moet_w2 import codebook, reference, step_hook
from moet_w2.cache import layout
from moet_w2.cache.key import CacheKey
from moet_w2.config import W2Config
from moet_w2.correction import sizing
from moet_w2.correction.store import PACK, Pack
from moet_w2.correction.tier import PREFILL_TOKENS, Correction, Resident
from moet_w2.errors import CacheError, ConfigError, UnsupportedError
from moet_w2.layer import PROJECTIONS, Shard
from moet_w2.placement import plan

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


# ---- put together


def correction(root: Path, prefill: bool = True, exclude=(), slots: int | None = 4, **options) -> Correction:
    layers = plan(W2Config(delta_exclude_layers=exclude), LAYERS)
    return Correction(layers, KEY, root, slots, "freq", prefill, CPU, **options)


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


def test_device_views_are_those_of_the_pool_and_touch_no_device(tmp_path: Path) -> None:
    made = correction(tmp_path, prefill=False, exclude=(1,))
    views = made.device_views(2, PREFILL_TOKENS)
    assert views.rows is made.pool.rows
    assert views.slots.data_ptr() == made.pool.table[2].data_ptr()
    assert views.counts.data_ptr() == made.pool.counts[2].data_ptr()
    long = made.device_views(2, PREFILL_TOKENS + 1)
    assert long.rows is None and long.slots is None and long.counts.data_ptr() == views.counts.data_ptr()
    assert made.device_views(1, 1) is None and made.pool.counts.sum() == 0


def test_warm_up_is_not_counted_and_the_manager_starts_after_it(tmp_path: Path) -> None:
    full_pack(tmp_path).close()
    made = correction(tmp_path, exclude=(1,))
    made.resident(0, torch.tensor([[0, 1]]))
    made.boundary()  # nothing yet
    assert made.pool.step == 0 and made.metrics().hit_rate is None
    made.start()
    made.resident(0, torch.tensor([[2, 2]]))
    for _ in range(16):
        made.boundary()
    manager = made.manager
    made.close()
    assert manager.heat[0].argmax() == 2 and manager.heat[0, :2].sum() == 0
    assert manager.metrics().totals.routings == 2 and manager.metrics().resident == 1


def test_two_ranks_would_disagree(tmp_path: Path) -> None:
    key = CacheKey("checkpoint-a", TINY, Shard(0, 2), LAYERS)
    with pytest.raises(UnsupportedError, match="on 2 tensor-parallel ranks"):
        Correction(plan(W2Config(), LAYERS), key, tmp_path, 4, "freq", True, CPU)


# ---- slots that are counted after the KV cache


def worker(utilization: float, kv_cache: int) -> SimpleNamespace:
    return SimpleNamespace(
        cache_config=SimpleNamespace(gpu_memory_utilization=utilization, kv_cache_memory_bytes=kv_cache)
    )


def memory(monkeypatch, total: int, available: int, rss: int) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=total, available=available))
    monkeypatch.setattr("psutil.Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=rss)))


@pytest.mark.parametrize(
    ("utilization", "available", "kv_cache", "expected"),
    [
        (0.5, 900, 100, 3),  # 500 - 60 - 100 = 340
        (0.5, 400, 100, 3),
        (0.9, 400, 190, 2),  # what is free counts as well
        (0.9, 900, 100, 6),  # no more than there are experts
    ],
)
def test_auto_takes_what_the_kv_cache_leaves(monkeypatch, utilization, available, kv_cache, expected) -> None:
    memory(monkeypatch, 1000, available, 60)
    assert sizing.slots(worker(utilization, kv_cache), CPU, 100, 6) == expected


def test_auto_without_room_is_refused_with_the_remedy(monkeypatch) -> None:
    memory(monkeypatch, 1000, 900, 60)
    with pytest.raises(ConfigError, match=r"DELTA_GB=auto finds no room .*\(39 bytes left.*--kv-cache-memory-bytes"):
        sizing.slots(worker(0.2, 101), CPU, 100, 6)


@pytest.mark.parametrize(("measured", "expected"), [({}, 4), ({"peak_activation_memory": 300}, 3)])
def test_auto_on_a_gpu_keeps_what_steps_and_graphs_need(monkeypatch, measured, expected) -> None:
    monkeypatch.setattr(sizing, "RESERVE", 50)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 1000))
    stats = {"reserved_bytes.all.peak": 260, "reserved_bytes.all.current": 160}  # steps take 100 again; graphs 50
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    made = SimpleNamespace(init_snapshot=SimpleNamespace(free_memory=900), requested_memory=1000, **measured)
    assert sizing.slots(made, torch.device("cuda", 0), 100, 9) == expected


def test_a_pool_that_is_sized_late_says_so_and_corrects(tmp_path: Path) -> None:
    full_pack(tmp_path).close()
    made, seen = correction(tmp_path, slots=None), []
    facts = made.facts()
    assert made.sized_late and (facts["slots"], facts["bytes"]) == (0, 0)
    assert made.resident(0, torch.tensor([[0, 1]])).rows.shape == (0, made.pack.row_bytes)
    made.on_sized = lambda: seen.append(facts["slots"])
    with torch.inference_mode():
        made.size(made.most_slots)
    assert seen == [LAYERS * TINY.experts] and facts["bytes"] == seen[0] * made.pack.row_bytes
    assert not made.pool.rows.is_inference()


# ---- moments of vLLM


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


def test_something_is_done_after_a_method_of_one_class_only() -> None:
    class Base:
        def warm_up(self, times: int) -> int:
            return times

    class Worker(Base):
        pass

    seen: list[object] = []
    step_hook.after(Worker, "warm_up", seen.append)
    one, base = Worker(), Base()
    assert one.warm_up(times=3) == 3 and base.warm_up(4) == 4 and seen == [one]
    with pytest.raises(UnsupportedError, match="Worker has no cool_down"):
        step_hook.after(Worker, "cool_down", seen.append)
