"""What a layer in mapped host memory reads, as the kernels count it, against its ids; and looks at a busy device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from kernel_bench import cases
from kernel_bench.cases import Case

from moet_w2 import cuda_host, topology
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import HostAllocation
from moet_w2.kernels import call as calls
from moet_w2.kernels.call import Call
from moet_w2.metrics.reads import MappedReads

pytestmark = pytest.mark.gpu

SHAPE = LayerGeometry(experts=64, hidden=256, width=256)
KEY = 43
BUSY_CYCLES = 2_000_000_000  # a second or more at any clock of these devices


def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def counters() -> MappedReads:
    return MappedReads((7, KEY), gpu())


@pytest.fixture
def host() -> Iterator[HostAllocation]:
    locality = topology.gpu_locality(cuda_host.pci_address(gpu().index))
    made = HostAllocation(f"layer {KEY}", SHAPE.nbytes, locality, cuda_host.CudaRegistrar())
    yield made
    torch.cuda.synchronize()
    made.close()


def mapped_call(host: HostAllocation, counters: MappedReads, case: Case) -> tuple[Call, list[int]]:
    """The call of a case whose layer lies in host memory, and how often it reads experts: whole, and scales alone."""
    from kernel_bench import chain, correctness

    prepared = correctness.prepare(case)
    given = prepared.given
    storage = cuda_host.device_view(host.device_address, SHAPE.nbytes, gpu())
    storage.copy_(prepared.layer.storage)
    call = chain.make_call(case, prepared.layer, given, given.slots, None)
    call = call._replace(storage=storage, reads=counters.words(KEY, SHAPE))
    wanted = torch.zeros(2, dtype=torch.int64)
    for piece, _ in calls.pieces(call, torch.empty_like(call.x)):
        valid = piece.topk_ids >= 0
        if piece.padding is not None:
            valid &= ~piece.padding.unsqueeze(1)
        routings = torch.bincount(piece.topk_ids[valid].long(), minlength=SHAPE.experts)
        wanted += torch.tensor(correctness.reads_of(routings, piece.slots, piece.plan.chunk))
    return call, wanted.tolist()


def nbytes(wanted: list[int]) -> int:
    parts = SHAPE.parts
    scales = parts["sc13"].row_bytes + parts["sc2"].row_bytes
    return wanted[0] * (SHAPE.nbytes // SHAPE.experts) + wanted[1] * scales


@pytest.mark.parametrize("tokens", [1, 5, 8, 20, 32, 33, 300, 2048])
@pytest.mark.parametrize(("tier", "routing"), [("base", "skewed"), ("mixed", "negative"), ("mixed", "padding")])
def test_a_call_counts_what_its_ids_say(host, counters, tokens: int, tier: str, routing: str) -> None:
    call, wanted = mapped_call(host, counters, Case(3000 + tokens, SHAPE, tokens, 6, tier, routing, 10.0, 0.1))
    counters.begin()
    out = torch.ops.moet_w2.experts(*call)
    torch.cuda.synchronize()
    assert counters.counts.tolist() == [[0, 0], wanted]
    assert counters.look() == nbytes(wanted)
    uncounted = torch.ops.moet_w2.experts(*call._replace(reads=None))
    assert torch.equal(out, uncounted) and counters.counts[1].tolist() == wanted


def test_a_batch_beyond_one_call_counts_each_piece(host, counters) -> None:
    tokens = cases.MAX_ROUTES // 6 + 700
    call, wanted = mapped_call(host, counters, Case(31, SHAPE, tokens, 6, "mixed", "skewed", 10.0, 0.1))
    counters.begin()
    torch.ops.moet_w2.experts(*call)
    assert counters.counts[1].tolist() == wanted and min(wanted) > SHAPE.experts


def test_a_replayed_graph_counts_each_time_what_it_then_reads(host, counters) -> None:
    call, _ = mapped_call(host, counters, Case(32, SHAPE, 5, 6, "base", "uniform", 10.0, 0.1))
    torch.ops.moet_w2.experts(*call)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ops.moet_w2.experts(*call)
    counters.begin()
    wanted = 0
    for seed in range(4):
        made = torch.Generator().manual_seed(seed)
        call.topk_ids.copy_(cases.choose(("uniform", "skewed", "negative", "one")[seed], 5, SHAPE.experts, 6, made))
        graph.replay()
        wanted += len(torch.unique(call.topk_ids[call.topk_ids >= 0]))
    torch.cuda.synchronize()
    assert counters.look() == nbytes([wanted, 0]) > 0


def test_a_look_does_not_wait_for_the_steps_nor_they_for_it(host, counters) -> None:
    call, wanted = mapped_call(host, counters, Case(33, SHAPE, 5, 6, "base", "uniform", 10.0, 0.1))
    counters.begin()
    torch.ops.moet_w2.experts(*call)
    torch.cuda.synchronize()
    assert counters.look() == nbytes(wanted)  # the copy has been made once: nothing is set up below
    step, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(step):
        torch.ops.moet_w2.experts(*call)  # its memory for this stream: a cudaMalloc later could wait for the device
    torch.cuda.synchronize()
    counters.begin()
    with torch.cuda.stream(step):
        torch.cuda._sleep(BUSY_CYCLES)
        torch.ops.moet_w2.experts(*call)
        done.record()
    seen = counters.look()
    assert not done.query(), "the look waited for the step"
    assert seen == 0
    done.synchronize()
    assert counters.look() == nbytes(wanted)
