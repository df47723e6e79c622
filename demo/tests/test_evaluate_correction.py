"""The evaluations of the FP4 correction: what they compute and when they fail; the servers run elsewhere."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from demo import evaluate_correction, evaluate_exclusion
from moet_w2.correction import trace
from moet_w2.correction.metrics import Totals
from moet_w2.correction.trace import Header, Recorder

RESULTS = Path(__file__).resolve().parents[1] / "results"


def test_distances_are_those_of_the_same_tokens() -> None:
    found = evaluate_correction.compare([-1.0, -2.0, -3.0, -4.0], [-1.0, -2.5, -3.0, -3.0])
    assert found == {
        "mean_distance": 0.375,
        "distance_at_99_percent": 1.0,
        "most_distance": 1.0,
        "mean_loss": 2.5,
    }
    with pytest.raises(ValueError):
        evaluate_correction.compare([-1.0], [-1.0, -2.0])


@pytest.mark.parametrize(("mean", "most", "holds"), [(4e-4, 4e-3, True), (5e-4, 4e-3, False), (4e-4, 5e-3, False)])
def test_the_tolerance_can_be_missed(mean: float, most: float, holds: bool) -> None:
    assert evaluate_correction.within({"mean_distance": mean, "distance_at_99_percent": most}) is holds


def test_the_chart_has_a_mark_for_each_pool(tmp_path: Path) -> None:
    points = [{"slots": slots, "mean_distance": 0.1 - slots / 3000} for slots in (0, 100, 256)]
    evaluate_correction.draw({"points": points}, tmp_path / "p.png")
    assert Image.open(tmp_path / "p.png").format == "PNG"


# ---- exclusion

GOOD = {
    "requests": 10,
    "routings_counted": [0, 0, 0, 999],
    "rows_promoted": [0, 0, 0, 50],
    "experts_resident": [0, 0, 0, 48],
    "read_errors": 0,
}


def test_a_run_without_a_trace_of_excluded_layers_holds() -> None:
    assert evaluate_exclusion.problems(GOOD, 48) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r["routings_counted"].__setitem__(1, 6), "excluded layer 1: routings_counted 6"),
        (lambda r: r["rows_promoted"].__setitem__(0, 1), "excluded layer 0: rows_promoted 1"),
        (lambda r: r["experts_resident"].__setitem__(3, 47), "47 of 48 slots are filled"),
        (lambda r: r.update(read_errors=2), "2 ruined rows were read"),
        (lambda r: r["routings_counted"].__setitem__(3, 9), "only 9 routings were counted"),
    ],
)
def test_each_way_to_fail_is_named(change, named: str) -> None:
    found = copy.deepcopy(GOOD)
    change(found)
    assert any(named in line for line in evaluate_exclusion.problems(found, 48))


def test_a_trace_is_judged_by_layer(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t", Header(4, 8, (3,), 2, 1, "freq", 60.0, 8))
    counts = numpy.zeros((4, 8), dtype=numpy.int64)
    counts[3, 5], counts[2, 1] = 7, 2
    recorder.add(0.0, counts, [(3, 5)], [])
    recorder.add(1.0, counts, [(3, 1), (0, 2)], [])
    recorder.write(Totals(routings=18, hits=9, read_errors=1))
    found = evaluate_exclusion.judged(trace.load(tmp_path / "t"), [(3, 5), (3, 1)])
    assert found == {
        "routings_counted": [0, 0, 4, 14],
        "rows_promoted": [1, 0, 0, 2],
        "experts_resident": [0, 0, 0, 2],
        "read_errors": 1,
        "hit_rate": 0.5,
    }


def test_ruined_rows_are_vouched_for_and_cannot_be_read(tmp_path: Path) -> None:
    pack = evaluate_exclusion.ruined_pack(tmp_path)
    row = torch.empty(pack.row_bytes, dtype=torch.uint8)
    for layer in evaluate_exclusion.EXCLUDED:
        assert pack.sealed(layer)
        with pytest.raises(OSError, match="is not what its CRC vouches for"):
            pack.read(layer, 63, row)
    pack.read(evaluate_exclusion.ELIGIBLE[0], 63, row)
    pack.close()


# ---- what was measured


def test_the_committed_run_of_a_thousand_requests_holds() -> None:
    document = json.loads((RESULTS / "exclusion.json").read_text())
    assert document["holds"] and document["excluded"]["requests"] == 1000
    assert evaluate_exclusion.problems(document["excluded"], document["slots"]) == []
    assert document["control_without_exclusions"]["read_errors"] > 0


def test_the_committed_full_pool_equals_the_stock_experts() -> None:
    document = json.loads((RESULTS / "correction-slots.json").read_text())
    points = document["points"]
    assert evaluate_correction.within(points[-1]) and points[-1]["hit_rate"] == 1
    assert not evaluate_correction.within(points[0])  # 2-bit experts alone
    assert [point["resident"] for point in points] == [point["slots"] for point in points]
    assert [point["slots"] for point in points] == list(evaluate_correction.SLOTS)
    assert (RESULTS / "correction-slots.png").is_file()
