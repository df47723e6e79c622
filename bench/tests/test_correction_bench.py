import copy
import sys
import zlib
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import correction
import correction_steps

from moet_w2.cache.key import CacheKey
from moet_w2.correction import codes
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import Shard

GOOD = {
    "steady_state": {"overhead": 0.002},
    "moving": {"overhead": 0.004, "promotions_a_step": 0.5},
    "cuda_calls_in_boundaries": {"cudaEventQuery": 3, "cudaMemcpyAsync": 8, "cudaEventRecordWithFlags": 9},
    "rows_that_are_not_the_pack's": 0,
    "read_errors": 0,
}


def test_a_good_run_holds() -> None:
    assert correction.verdict(GOOD) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda r: r["steady_state"].update(overhead=0.01), "the manager costs 1.00% of a step"),
        (lambda r: r["moving"].update(overhead=0.02), "the manager costs 2.00% of a step (moving)"),
        (lambda r: r["moving"].update(promotions_a_step=0.0), "nobody moved"),
        (lambda r: r.update(cuda_calls_in_boundaries=None), "the profiler saw no CUDA calls"),
        (lambda r: r["cuda_calls_in_boundaries"].update(cudaStreamSynchronize=1), "calls cudaStreamSynchronize"),
        (lambda r: r["cuda_calls_in_boundaries"].update(cudaMemcpy=1), "a boundary calls cudaMemcpy"),
        (lambda r: r["cuda_calls_in_boundaries"].update(cudaHostAlloc=1), "a boundary calls cudaHostAlloc"),
        (lambda r: r.update({"rows_that_are_not_the_pack's": 1}), "slots do not hold the pack's rows"),
        (lambda r: r.update(read_errors=1), "slots do not hold the pack's rows"),
    ],
)
def test_each_fault_is_named(change, problem: str) -> None:
    results = copy.deepcopy(GOOD)
    change(results)
    (found,) = correction.verdict(results)
    assert problem in found


def test_few_rows_stand_for_all_experts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(correction_steps, "DISTINCT_ROWS", 3)
    geometry = LayerGeometry(experts=4, hidden=256, width=128)
    pack = correction_steps.FewRows(tmp_path, CacheKey("generated", geometry, Shard(), 2))
    rows = []
    for layer, expert in [(0, 1), (1, 0), (1, 3)]:
        assert pack.sealed(layer)
        rows.append(torch.empty(pack.row_bytes, dtype=torch.uint8))
        pack.read(layer, expert, rows[-1])
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])  # 1, 4 and 7 of 3
    part = codes.row_slices(geometry)["w2"]
    assert pack._vouched[1][0]["w2"] == zlib.crc32(rows[0][part].numpy())
    pack.close()
