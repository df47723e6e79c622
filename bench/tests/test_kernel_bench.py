"""What the kernel benchmark computes on its own, and that its judge sees what is wrong."""

import ctypes
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kernel_emulator
from kernel_bench import cases, chain, correctness, exact

from moet_w2.geometry import LayerGeometry

SMALL = LayerGeometry(experts=8, hidden=256, width=128)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "DEVICE", "cpu")


def case_of(tier: str = "mixed", routing: str = "uniform", tokens: int = 12) -> cases.Case:
    return cases.Case(7, SMALL, tokens, 3, tier, routing, 10.0, 0.1)


def judged(case: cases.Case, spoil: Callable[[str, torch.Tensor], None] | None = None) -> correctness.Verdict:
    return correctness.judge(correctness.prepare(case, "cpu"), kernel_emulator.find(spoil))


def test_cases_are_the_same_for_the_same_seed_and_cover_everything() -> None:
    drawn = cases.generate(500)
    assert drawn == cases.generate(500) and drawn != cases.generate(500, seed=1)
    assert len({str(case) for case in drawn}) == 500
    assert Counter(case.tier for case in drawn).keys() == set(cases.TIERS)
    assert Counter(case.routing for case in drawn).keys() == set(cases.ROUTINGS)
    assert {case.geometry for case in drawn} == {*cases.TINY, *cases.REAL}
    assert {case.limit for case in drawn} == {10.0, None}
    for low, high in cases.TOKENS:
        assert sum(low <= case.tokens <= high for case in drawn) >= 20
    assert max(case.tokens for case in drawn) == 8192 and min(case.tokens for case in drawn) == 1
    assert all(case.tokens * case.top_k <= cases.MAX_ROUTES for case in drawn)


def test_the_small_set_has_every_kernel_in_every_tier() -> None:
    plans = [(case, chain.shapes.plan(16, 256, 256, case.tokens, 6)) for case in cases.smoke()]
    for tier in cases.TIERS:
        names = {step.name for case, plan in plans if case.tier == tier for step in plan.steps}
        sizes = ["n8", "n16", "n32"]
        expected = {f"moet_decode{gemm}_{size}" for gemm in (13, 2) for size in sizes}
        assert names == expected | {"moet_routing", "moet_combine", "moet_prefill13", "moet_prefill2"}, tier


@pytest.mark.parametrize("routing", cases.ROUTINGS)
def test_routings_are_what_they_are_called(routing: str) -> None:
    given = cases.inputs(case_of(routing=routing, tokens=400))
    counts = torch.bincount(given.ids[given.valid].long(), minlength=8)
    rows = given.ids[(given.ids >= 0).all(-1)]
    assert all(len(set(row.tolist())) == 3 for row in rows)
    if routing == "uniform":
        assert counts.min() > 100
    elif routing == "skewed":
        assert counts[0] > 2 * counts[7] > 0
    elif routing == "one":
        assert counts[0] == 400
    elif routing == "gap":
        assert counts[1::2].sum() == 0 and counts.sum() == 1200
    elif routing == "negative":
        assert not given.valid[0].any() and 0.5 < counts.sum() / 1200 < 0.8
    else:
        assert given.padding.any() and given.x[given.padding].isnan().all() and counts.sum() < 1200


@pytest.mark.parametrize("tier", cases.TIERS)
@pytest.mark.parametrize("routing", cases.ROUTINGS)
def test_right_kernels_pass(tier: str, routing: str) -> None:
    verdict = judged(case_of(tier, routing))
    assert verdict.failures == ()
    assert 0 < verdict.unavoidable < correctness.TOLERANCE and verdict.error < correctness.TOLERANCE


def one_off(name: str, place: tuple, value: float, only_on_run: int | None = None) -> Callable:
    """Changes one value of what a kernel wrote, on every run or on one."""
    runs = Counter()

    def spoil(kernel: str, written: torch.Tensor) -> None:
        runs[kernel] += 1
        if name in kernel and only_on_run in (None, runs[kernel]):
            written[place] = value

    return spoil


@pytest.mark.parametrize(
    "spoil, named",
    [
        (one_off("combine", (3, 5), 50.0), "relative error"),
        (one_off("combine", (3, 5), float("nan")), "relative error inf"),
        (one_off("combine", (3, 5), 1e-4, only_on_run=2), "a second run differs: 1 of 3072 values, first at (3, 5)"),
        (one_off("decode2", (slice(None), 9), 0.0, only_on_run=3), "base routes of a mixed call differ"),
        (one_off("decode2", (slice(None), 9), 0.0, only_on_run=4), "fp4 routes of a mixed call differ"),
    ],
)
def test_wrong_kernels_fail(spoil: Callable, named: str) -> None:
    assert any(named in failure for failure in judged(case_of(), spoil).failures)


@pytest.mark.parametrize("gemm, named", [("decode13", "first GEMM"), ("decode2", "second GEMM")])
def test_an_error_of_the_kernels_own_fails_where_the_whole_error_is_small_enough(gemm: str, named: str) -> None:
    def scale(kernel: str, written: torch.Tensor) -> None:
        if gemm in kernel:
            # A step of bfloat16 in a few inner values; less than half a step in float32.
            factor = 1 + (2**-7 if gemm == "decode13" else 2**-11)
            written[:, ::32] *= factor

    good, bad = judged(case_of("base")), judged(case_of("base"), scale)
    assert good.own < correctness.OWN_TOLERANCE / 5 and bad.error < correctness.TOLERANCE
    (failure,) = bad.failures
    assert failure.startswith(f"{named}: error beyond bfloat16's roundings")


def test_rounding_to_the_nearest_is_no_error_and_a_step_further_is() -> None:
    value = torch.tensor([1.0, 1.001, -3.7, 1e-30, 250.0, 0.0], dtype=torch.float64)
    assert exact.beyond_rounding(value.bfloat16(), value) == 0
    other = value.bfloat16().view(torch.int16).add(1).view(torch.bfloat16)
    assert exact.beyond_rounding(other, value) > 1e-3
    assert exact.beyond_rounding(torch.full_like(value, float("nan")).bfloat16(), value) == float("inf")
    zero = torch.zeros_like(value)
    assert exact.beyond_rounding(zero.bfloat16(), zero) == 0 and exact.beyond_rounding(other, zero) == float("inf")


def test_a_row_without_a_route_must_be_zero() -> None:
    verdict = judged(case_of("base", "negative"), one_off("combine", (0, 0), 1e-6))
    assert "a token without a route is not zero" in verdict.failures


def test_wrong_counts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = correctness.prepare(case_of("base"), "cpu")
    given = prepared.given
    fewer = given.ids.clone()
    fewer[0, 0] = -1
    vars(given)["ids"] = fewer  # what the judge is told; the call keeps what the reference saw
    original = correctness.make_call
    ids = cases.inputs(prepared.case).ids
    monkeypatch.setattr(correctness, "make_call", lambda *args: original(*args)._replace(topk_ids=ids))
    failures = correctness.judge(prepared, kernel_emulator.find()).failures
    assert failures[-2:] == (f"counts differ for experts [{int(ids[0, 0])}]", "36 routes counted, 35 given")


@pytest.mark.parametrize(("word", "tier"), [(0, "base"), (1, "mixed")])
def test_wrong_reads_fail(monkeypatch: pytest.MonkeyPatch, word: int, tier: str) -> None:
    right = kernel_emulator.Emulated.launch

    def launch(self, grid: object, block: int, shared: int, p: object, pdl: bool = False) -> None:
        right(self, grid, block, shared, p, pdl)
        if "routing" in self.name and p.reads:
            torch.frombuffer((ctypes.c_int64 * 2).from_address(p.reads), dtype=torch.int64)[word] += 1

    monkeypatch.setattr(kernel_emulator.Emulated, "launch", launch)
    (failure,) = judged(case_of(tier)).failures
    assert failure.startswith("reads of planes and of scales alone are [")


def test_reads_follow_routings_slots_and_chunks() -> None:
    routings, slots = torch.tensor([0, 1, 64, 65, 200, 64]), torch.tensor([0, -1, -1, -1, 2, 1])
    assert correctness.reads_of(routings, slots, 64) == [1 + 1 + 2, 4 + 1]
    assert correctness.reads_of(routings, None, 64) == [9, 0]
    assert correctness.reads_of(routings, None, 1024) == [5, 0]


def test_tiers_hold_different_weights() -> None:
    layer = correctness.weights(SMALL, "cpu")
    base, fp4 = layer.exact(3, False)[0], layer.exact(3, True)[0]
    assert not torch.equal(base, fp4)
    assert base.abs().min() >= 2.0**-10 and base.abs().max() <= 4 * 2.0**-2


def test_errors_count_what_is_not_a_number() -> None:
    one, zero = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert exact.relative_error(one.float(), one) == 0
    assert exact.relative_error(torch.tensor([1.0, float("nan")]), one) == float("inf")
    assert exact.relative_error(zero.float(), zero) == 0 and exact.relative_error(one.float(), zero) == float("inf")


def test_a_summary_names_every_failed_case() -> None:
    good, bad = judged(case_of()), judged(case_of("base"), one_off("combine", (3, 5), 50.0))
    found = correctness.summary([good, bad])
    assert found["cases"] == 2 and found["failed"] == 1 and found["mixed_cases"] == 1
    assert len(found["failures"]) == 1 and str(bad.case) in found["failures"][0]
    assert found["largest_error"] == bad.error
