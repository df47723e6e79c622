import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import startup

from moet_w2.cache import layout
from moet_w2.cache.key import CacheKey
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import Shard

SMALL = LayerGeometry(experts=2, hidden=256, width=128)


def test_rates_are_of_the_same_bytes(tmp_path: Path) -> None:
    result = startup.measure(tmp_path / "cache", layers=6, repeats=1, geometry=SMALL)
    assert result["bytes"] == 6 * SMALL.nbytes
    rates = result["gib_per_s"]
    assert set(rates) == {"load_cold", "dd_direct_cold", "dd_buffered_cold", "load_warm", "dd_buffered_warm"}
    best = max(rates["dd_direct_cold"], rates["dd_buffered_cold"])
    assert result["cold_ratio_to_best_dd"] == pytest.approx(rates["load_cold"] / best)


def test_a_layer_that_cannot_be_read_ends_the_benchmark(tmp_path: Path) -> None:
    key = CacheKey("benchmark", SMALL, Shard(), 1)
    startup.make_cache(tmp_path, key)
    layout.payload_path(layout.folder(tmp_path, key), 0).write_bytes(b"")
    server = startup.Server(tmp_path, key)
    with pytest.raises(SystemExit, match="was not read"):
        server.read()
    startup.close_all()
