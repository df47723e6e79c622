import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import startup
import startup_files
from startup_files import CHUNK, Noise, make_cache
from startup_server import Server

from moet_w2.cache import layout
from moet_w2.cache.key import CacheKey
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import close_all
from moet_w2.layer import Shard

SMALL = LayerGeometry(experts=2, hidden=256, width=128)
CPU = torch.device("cpu")


@pytest.fixture
def key() -> CacheKey:
    return CacheKey("benchmark", SMALL, Shard(), 6)


def test_rates_are_of_the_same_bytes(tmp_path: Path) -> None:
    kept: list[bool] = []
    keep = lambda result: kept.append("construct" in result)  # noqa: E731
    result = startup.measure(tmp_path, layers=6, repeats=1, construct=2, geometry=SMALL, keep=keep)
    assert kept == [False, True]  # a late step that fails leaves the early ones
    assert result["bytes"] == 6 * SMALL.nbytes and result["bytes_right"] is True
    assert all(sum(ways.values()) == 6 for ways in result["ways"].values())
    rates, seconds = result["gib_per_s"], result["seconds"]
    assert set(rates) == {"load_cold", "dd_direct_cold", "dd_buffered_cold", "load_warm", "dd_buffered_warm"}
    assert all(rates[name] == pytest.approx(result["bytes"] / seconds[name] / 2**30) for name in rates)
    best = max(rates["dd_direct_cold"], rates["dd_buffered_cold"])
    assert result["cold_ratio_to_best_dd"] == pytest.approx(rates["load_cold"] / best)
    construct = result["construct"]
    assert construct["load_seconds_per_layer"] == pytest.approx(seconds["load_cold"] / 6)
    assert construct["ratio"] == pytest.approx(construct["seconds_per_layer"] / construct["load_seconds_per_layer"])


def test_a_layer_that_cannot_be_read_ends_the_benchmark(tmp_path: Path, key: CacheKey) -> None:
    files = make_cache(tmp_path / "cache", key, Noise())
    files[0].write_bytes(b"")
    server = Server(tmp_path / "cache", key, len(files), CPU)
    with pytest.raises(SystemExit, match="was not read"):
        server.read()
    close_all()


def test_one_wrong_byte_is_seen(tmp_path: Path, key: CacheKey) -> None:
    noise = Noise()
    files = make_cache(tmp_path / "cache", key, noise)
    server = Server(tmp_path / "cache", key, len(files), CPU)
    server.read()
    assert server.holds(noise)
    with files[5].open("r+b") as file:
        file.seek(layout.HEAD + SMALL.nbytes - 1)
        last = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([last[0] ^ 1]))
    server.read()
    assert not server.holds(noise)
    close_all()


def test_no_two_chunks_of_a_real_benchmark_are_alike() -> None:
    chunks = -(-startup.LAYER.nbytes // CHUNK)
    offsets = {Noise.offset(layer, number) for layer in range(24) for number in range(chunks)}
    assert len(offsets) == 24 * chunks
    assert max(offsets) < CHUNK


def test_a_slow_disk_gets_fewer_layers_and_an_even_number(tmp_path: Path, key: CacheKey, monkeypatch) -> None:
    monkeypatch.setattr(startup_files, "WRITERS", 1)
    clock = iter(range(100))
    monkeypatch.setattr(startup_files.time, "monotonic", lambda: next(clock))
    files = make_cache(tmp_path, key, Noise(), seconds=2.5)
    # The clock reads 0 at the start and one more before each layer; the deadline passes before the third.
    assert [path.name for path in files] == ["layer-000.w2", "layer-001.w2"]
    assert sorted(path.name for path in files[0].parent.glob("*.w2")) == [path.name for path in files]


def test_forgotten_files_are_not_cached(tmp_path: Path, key: CacheKey) -> None:
    files = make_cache(tmp_path, key, Noise())
    startup.dd(files, direct=False)
    left = startup_files.forget(files)
    if left is None:
        pytest.skip("this kernel has no cachestat")
    assert left in (0, sum(path.stat().st_size for path in files))  # a tmpfs has nowhere else to keep them
