"""The operator as torch sees it: schema, mutation, fake tensors, tracing; and the order of its launches."""

from __future__ import annotations

import pytest
import torch
from generators import TINY
from torch._subclasses.fake_tensor import FakeTensorMode

from moet_w2.errors import UnsupportedError
from moet_w2.kernels import experts, shapes


def arguments(tokens: int = 3, top_k: int = 2) -> tuple:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, TINY.hidden, generator=generator).bfloat16()
    ids = torch.randint(0, TINY.experts, (tokens, top_k), generator=generator, dtype=torch.int32)
    weights = torch.rand(tokens, top_k, generator=generator)
    return x, weights, ids, torch.zeros(TINY.nbytes, dtype=torch.uint8), TINY.experts, TINY.width, 10.0


def on_cpu(
    x, weights, ids, storage, experts, width, limit=None, rows=None, slots=None, counts=None, padding=None, reads=None
):
    """Stands in for the kernels, which no CPU runs: reads and writes the same arguments, computes something else."""
    if padding is not None:
        ids = ids.masked_fill(padding.unsqueeze(1), -1)
    if counts is not None:
        counts += torch.bincount(ids[ids >= 0].flatten(), minlength=experts)
    if reads is not None:
        reads[0] += len(torch.unique(ids[ids >= 0]))
    return (x.float() * (weights * (ids >= 0)).sum(1, keepdim=True)).to(x.dtype)


@pytest.fixture
def cpu_kernel():
    library = torch.library.Library("moet_w2", "IMPL")
    library.impl("experts", on_cpu, "CPU")
    yield torch.ops.moet_w2.experts.default
    library._destroy()


def test_the_operator_keeps_torchs_contracts(cpu_kernel) -> None:
    counts, padding = torch.zeros(TINY.experts, dtype=torch.int64), torch.tensor([False, True, False])
    plain, full = arguments(), (*arguments(), None, None, counts, padding, torch.zeros(2, dtype=torch.int64))
    for given in (plain, full):
        torch.library.opcheck(cpu_kernel, given, test_utils=("test_schema", "test_faketensor"))


def test_compiled_code_keeps_the_counts(cpu_kernel) -> None:
    given, counts = arguments(), torch.zeros(TINY.experts, dtype=torch.int64)

    reads = torch.zeros(2, dtype=torch.int64)

    def step(x: torch.Tensor, counts: torch.Tensor, reads: torch.Tensor) -> torch.Tensor:
        return cpu_kernel(x * 1.0, *given[1:], counts=counts, reads=reads) + 1

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(given[0], counts, reads), on_cpu(*given) + 1)
    assert torch.equal(counts, torch.bincount(given[2].flatten(), minlength=TINY.experts))
    assert reads.tolist() == [len(torch.unique(given[2])), 0]


def test_fake_tensors_give_the_shape_and_run_nothing() -> None:
    with FakeTensorMode():
        x = torch.empty(5, 256, dtype=torch.bfloat16, device="cuda")
        ids, weights = torch.empty(5, 6, dtype=torch.int32, device="cuda"), torch.empty(5, 6, device="cuda")
        storage = torch.empty(TINY.nbytes, dtype=torch.uint8, device="cuda")
        out = torch.ops.moet_w2.experts(x, weights, ids, storage, TINY.experts, TINY.width)
    assert (out.shape, out.dtype, out.device.type) == ((5, 256), torch.bfloat16, "cuda")


class Recorder:
    """In place of a kernel."""

    def __init__(self, launches: list, name: str) -> None:
        self.launches, self.name = launches, name

    def allow_shared(self, nbytes: int) -> None:
        pass

    def resident_blocks(self, block: int, shared: int) -> int:
        return 264

    def launch(self, grid, block, shared, params, pdl=False) -> None:
        self.launches.append((self.name, grid, block, shared, pdl, params))


@pytest.fixture
def launches(monkeypatch) -> list:
    made: list = []
    monkeypatch.setattr(experts.driver, "kernel", lambda source, name, device: Recorder(made, name))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    experts.bind.cache_clear()
    yield made
    experts.bind.cache_clear()


def test_a_call_is_four_launches_in_order(launches) -> None:
    out = experts.experts(*arguments())
    assert out.shape == (3, 256)
    assert [launch[0] for launch in launches] == [
        "moet_routing",
        "moet_decode13_n8",
        "moet_decode2_n8",
        "moet_combine",
    ]
    assert [launch[1] for launch in launches] == [(1, 1, 1), (264, 1, 1), (264, 1, 1), (3, 1, 1)]
    assert all(launch[4] for launch in launches)
    assert launches[3][5].out == out.data_ptr()


def test_other_dtypes_of_ids_and_weights_are_cast(launches) -> None:
    x, weights, ids, *rest = arguments()
    experts.experts(x, weights.double(), ids.long(), *rest)
    assert launches[0][5].ids not in (0, ids.data_ptr()) and launches[1][5].weights not in (0, weights.data_ptr())


def test_no_token_is_no_launch(launches) -> None:
    assert experts.experts(*arguments(0)).shape == (0, 256)
    assert launches == []


def test_a_refused_argument_launches_nothing(launches) -> None:
    x, *rest = arguments()
    with pytest.raises(UnsupportedError, match="x is float32"):
        experts.experts(x.float(), *rest)
    assert launches == []


def test_a_batch_beyond_the_counters_takes_several_calls(launches, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "MAX_ROUTES", 8)
    out = experts.experts(*arguments(5))
    combines = [launch[5] for launch in launches if launch[0] == "moet_combine"]
    assert [params.tokens for params in combines] == [4, 1]
    assert [params.out - out.data_ptr() for params in combines] == [0, 4 * 256 * 2]


def test_preparing_loads_every_kernel(launches, monkeypatch) -> None:
    loaded = set()
    monkeypatch.setattr(
        experts.driver, "kernel", lambda source, name, device: loaded.add(name) or Recorder(launches, name)
    )
    experts.prepare(TINY.experts, TINY.hidden, TINY.width, 6, torch.device("cuda", 0))
    decode = {f"moet_decode{number}_n{chunk}" for number in (13, 2) for chunk in (8, 16, 32)}
    assert loaded == decode | {"moet_routing", "moet_combine", "moet_prefill13", "moet_prefill2"}
