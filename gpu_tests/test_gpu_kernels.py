"""The CUDA kernels against float64, themselves, and graphs of themselves."""

from __future__ import annotations

import pytest
import torch
from kernel_bench import cases
from kernel_bench.cases import Case

from moet_w2.geometry import LayerGeometry

pytestmark = pytest.mark.gpu

CASES = cases.generate(500)
SHAPE = LayerGeometry(experts=64, hidden=256, width=256)
# Odd numbers of column tiles, row tiles that do not fill a block of prefill, and as many experts as there may be.
ODD_SHAPES = (LayerGeometry(8, 384, 640), LayerGeometry(8, 640, 384), LayerGeometry(1024, 384, 128))


def case_of(tokens: int, tier: str = "mixed", routing: str = "uniform", top_k: int = 6) -> Case:
    return Case(1000 + tokens, SHAPE, tokens, top_k, tier, routing, 10.0, 0.1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_random_case_holds(case: Case) -> None:
    from kernel_bench import correctness

    verdict = correctness.run(case)
    assert not verdict.failures, "; ".join(verdict.failures)


@pytest.mark.parametrize("tokens", [1, 8, 16, 32, 70])
@pytest.mark.parametrize("geometry", ODD_SHAPES, ids=str)
def test_an_odd_shape_holds(geometry: LayerGeometry, tokens: int) -> None:
    from kernel_bench import correctness

    verdict = correctness.run(Case(2000 + tokens, geometry, tokens, 6, "mixed", "uniform", 10.0, 0.1))
    assert not verdict.failures, "; ".join(verdict.failures)


@pytest.mark.parametrize("tokens", [1, 8, 9, 33, 100, 700])
def test_the_operator_gives_what_the_launches_give(tokens: int) -> None:
    from kernel_bench import chain, correctness

    prepared = correctness.prepare(case_of(tokens))
    given = prepared.given
    call = chain.make_call(prepared.case, prepared.layer, given, given.slots, None)
    found = torch.ops.moet_w2.experts(*call)
    assert correctness.same(found, chain.Chain(call).run())


def test_a_batch_beyond_one_call_is_cut_up_without_a_trace() -> None:
    from kernel_bench import chain, correctness, exact

    prepared = correctness.prepare(case_of(cases.MAX_ROUTES // 6 + 700, routing="skewed"))
    given = prepared.given
    call = chain.make_call(prepared.case, prepared.layer, given, given.slots, None)
    out = torch.ops.moet_w2.experts(*call)
    assert exact.relative_error(out, prepared.reference.pure) <= correctness.TOLERANCE


@pytest.mark.parametrize("tokens", [1, 5, 16, 32, 64, 300, 600])
def test_a_replayed_graph_follows_its_inputs(tokens: int) -> None:
    """Captured once, replayed with other activations, weights, ids and slots: the eager result bit for bit."""
    from kernel_bench import chain, correctness

    prepared = correctness.prepare(case_of(tokens))
    given, layer = prepared.given, prepared.layer
    everyone = torch.arange(SHAPE.experts, dtype=torch.int32, device="cuda")
    call = chain.make_call(prepared.case, layer, given, everyone, None)._replace(slots=given.slots.clone())
    captured = chain.Chain(call)
    captured.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.run()
    for seed in range(3):
        made = torch.Generator().manual_seed(seed)
        call.topk_ids.copy_(cases.choose(("uniform", "skewed", "negative")[seed], tokens, SHAPE.experts, 6, made))
        call.x.copy_(torch.randn(call.x.shape, generator=made).mul_(0.2))
        call.topk_weights.copy_(torch.rand(call.topk_weights.shape, generator=made))
        slots = torch.arange(SHAPE.experts, dtype=torch.int32)
        slots[torch.rand(SHAPE.experts, generator=made) < 0.5] = -1
        call.slots.copy_(slots)
        captured.poison()
        graph.replay()
        replayed = captured.out.clone()
        captured.poison()
        assert correctness.same(replayed, captured.run())
        assert replayed.isfinite().all()
        # A lone token may be routed nowhere: then, and only then, its output is nothing but zeros.
        assert bool(replayed.count_nonzero()) == bool((call.topk_ids >= 0).any())


def test_the_operator_is_captured_like_any_other() -> None:
    from kernel_bench import chain, correctness

    prepared = correctness.prepare(case_of(5))
    given = prepared.given
    counts = torch.zeros(SHAPE.experts, dtype=torch.int64, device="cuda")
    call = chain.make_call(prepared.case, prepared.layer, given, given.slots, counts)
    eager = torch.ops.moet_w2.experts(*call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.ops.moet_w2.experts(*call)
    counts.zero_()
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert correctness.same(out, eager)
    expected = torch.bincount(given.ids.flatten().long(), minlength=SHAPE.experts)
    assert torch.equal(counts, 3 * expected)


def test_a_wrong_kernel_result_is_seen() -> None:
    """The judge itself: one output value off, one count off, one tier off."""
    from kernel_bench import correctness

    prepared = correctness.prepare(case_of(12))
    assert not correctness.judge(prepared).failures
    wrong = prepared.reference.pure.clone()
    wrong[3] += 0.01 * wrong.norm()
    reference = prepared.reference._replace(pure=wrong)
    assert "relative error" in correctness.judge(_changed(prepared, reference=reference)).failures[0]
    ids = prepared.given.ids.clone()
    ids[0, 0] = -1
    given = type(prepared.given)(**{**vars(prepared.given), "ids": ids})
    swapped = _changed(prepared, given=given)
    assert any("relative error" in failure for failure in correctness.judge(swapped).failures)


def _changed(prepared, **fields):
    return type(prepared)(**{**vars(prepared), **fields})
