"""The expert operator as torch's compilers and other threads see it, on a GPU."""

from __future__ import annotations

import threading

import pytest
import torch
from kernel_bench import cases
from kernel_bench.cases import Case

from moet_w2.geometry import LayerGeometry

pytestmark = pytest.mark.gpu

SHAPE = LayerGeometry(experts=16, hidden=256, width=128)


@pytest.fixture
def call():
    from kernel_bench import chain, correctness

    prepared = correctness.prepare(Case(7, SHAPE, 12, 4, cases.TIERS[-1], "uniform", 10.0, 0.1))
    counts = torch.zeros(SHAPE.experts, dtype=torch.int64, device="cuda")
    return chain.make_call(prepared.case, prepared.layer, prepared.given, prepared.given.slots, counts)


def test_the_operator_keeps_torchs_contracts(call) -> None:
    operator = torch.ops.moet_w2.experts.default
    torch.library.opcheck(operator, tuple(call), test_utils=("test_schema", "test_faketensor"))


def test_compiled_code_computes_and_counts_the_same(call) -> None:
    def step(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return torch.ops.moet_w2.experts(x * 1.0, *call[1:9], counts, call.padding) + 1

    eager = step(call.x, call.counts)
    once = call.counts.clone()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(call.x, call.counts), eager)
    assert torch.equal(call.counts, 2 * once) and once.any()


def test_a_thread_that_never_touched_cuda_can_call(call) -> None:
    eager, found = torch.ops.moet_w2.experts(*call), []
    thread = threading.Thread(target=lambda: found.append(torch.ops.moet_w2.experts(*call)))
    thread.start()
    thread.join()
    assert torch.equal(found[0], eager)


@pytest.mark.parametrize("tokens", [1, 12, 700])
@pytest.mark.parametrize("by", ["padding", "ids"])
def test_a_batch_without_a_route_gives_zeros_and_counts_nothing(call, tokens: int, by: str) -> None:
    """vLLM warms graphs up with batches that are padding from end to end."""
    x = torch.full((tokens, SHAPE.hidden), float("nan"), dtype=torch.bfloat16, device="cuda")
    ids = torch.full((tokens, 4), -1 if by == "ids" else 3, dtype=torch.int32, device="cuda")
    padding = torch.full((tokens,), by == "padding", device="cuda")
    weights = torch.ones(tokens, 4, device="cuda")
    call = call._replace(x=x, topk_ids=ids, topk_weights=weights, padding=padding)
    out = torch.ops.moet_w2.experts(*call)
    assert out.shape == x.shape and not out.any()
    assert not call.counts.any()


def test_the_current_stream_is_the_one_that_runs_it(call) -> None:
    eager, late = torch.ops.moet_w2.experts(*call), torch.zeros_like(call.x)
    assert eager.count_nonzero()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # another stream's launch would see the zeros
        late.copy_(call.x)
        found = torch.ops.moet_w2.experts(late, *call[1:])
    stream.synchronize()
    assert torch.equal(found, eager)
