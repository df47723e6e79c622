"""The routing kernel, whole and thread by thread on a CPU, against plain loops (routing_host.cpp)."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pins
import pytest
import torch

from moet_w2.geometry import LayerGeometry
from moet_w2.kernels import experts, shapes
from moet_w2.kernels.call import Call, check
from moet_w2.kernels.params import Entry, RoutingParams
from moet_w2.kernels.shapes import Plan

pytestmark = pytest.mark.usefixtures("host_compiler")

KERNELS = pins.ROOT / "kernels"
HIDDEN = WIDTH = 128  # the kernel reads no weights: it only says where they lie
POISON = 0xA5
UNWRITTEN = int.from_bytes(bytes([POISON] * 4), "little", signed=True)
CASES = 40
TOKENS = (1, 2, 5, 8, 9, 16, 32, 33, 64, 70, 200, 700, 2048)
EXPERTS = (4, 16, 64, 256, 1024)

Run = Callable[[RoutingParams, int, int], None]


@dataclass
class Case:
    """One call: ids int32 ``[T, k]``, padding bool ``[T]`` or None, slots int32 ``[E]`` or None, whether routings and
    reads are counted, and the seed of the order in which threads take turns, less one."""

    experts: int
    ids: torch.Tensor
    padding: torch.Tensor | None
    slots: torch.Tensor | None
    counted: bool
    seed: int

    def __str__(self) -> str:
        tokens, top_k = self.ids.shape
        given = [name for name in ("padding", "slots") if getattr(self, name) is not None]
        return "-".join([f"E{self.experts}-T{tokens}-k{top_k}", *given, *(["counted"] if self.counted else [])])


def drawn(seed: int) -> Case:
    """A random call: some ids negative, some of no expert, some twice in a token, most of a few experts."""
    draw, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    count, tokens, top_k = draw.choice(EXPERTS), draw.choice(TOKENS), draw.choice((1, 2, 6, 8))
    odds = torch.rand(count, generator=noise) ** draw.choice((0, 1, 8)) + 1e-6
    ids = torch.multinomial(odds, tokens * top_k, replacement=True, generator=noise).int().view(tokens, top_k)
    unrouted = torch.rand(ids.shape, generator=noise)
    share = draw.choice((0.0, 0.3, 1.0))
    ids[unrouted < share] = draw.choice((-1, -7, count, count + 3))
    padding = torch.rand(tokens, generator=noise) < draw.choice((0.3, 1.0)) if draw.random() < 0.4 else None
    slots = None
    if draw.random() < 0.5:
        slots = torch.randperm(count, generator=noise).int()
        slots[torch.rand(count, generator=noise) < 0.5] = -1
    return Case(count, ids, padding, slots, draw.random() < 0.7, seed)


@dataclass
class Result:
    """What a call leaves: entries as tuples of their fields, routes, header, routings of each expert, reads."""

    entries: list[tuple[int, ...]]
    routes: list[int]
    header: list[int]
    counts: list[int]
    reads: list[int]


def prepared(case: Case) -> tuple[Call, Plan]:
    tokens, top_k = case.ids.shape
    geometry = LayerGeometry(case.experts, HIDDEN, WIDTH)
    call = Call(
        torch.empty(tokens, HIDDEN, dtype=torch.bfloat16),
        torch.empty(tokens, top_k),
        case.ids,
        torch.empty(geometry.nbytes, dtype=torch.uint8),
        case.experts,
        WIDTH,
        None,
        None if case.slots is None else torch.empty(case.experts, geometry.correction_row_bytes, dtype=torch.uint8),
        case.slots,
        torch.full((case.experts,), 5, dtype=torch.int64) if case.counted else None,
        case.padding,
        torch.tensor([7, 11]) if case.counted else None,
    )
    check(call)
    return call, call.plan


def expected(case: Case, call: Call, plan: Plan) -> Result:
    """The same by plain loops."""
    choices: dict[int, list[int]] = {expert: [] for expert in range(case.experts)}
    for token, row in enumerate(case.ids.tolist()):
        for choice, expert in enumerate(row):
            if expert in choices and not (case.padding is not None and case.padding[token]):
                choices[expert].append(token * len(row) + choice)
    entries, routes, reads = [], [], [7, 11]
    parts = LayerGeometry(case.experts, HIDDEN, WIDTH).parts
    layer = call.storage.data_ptr()
    for expert, mine in choices.items():
        slot = -1 if case.slots is None else int(case.slots[expert])
        at = {name: layer + part.offset + expert * part.row_bytes for name, part in parts.items()}
        if slot >= 0:
            at["planes13"] = call.rows.data_ptr() + slot * plan.row_bytes
            at["planes2"] = at["planes13"] + 2 * WIDTH * HIDDEN // 2  # after the codes of gate and up
        for start in range(0, len(mine), plan.chunk):
            places = (len(routes) + start, len(mine[start : start + plan.chunk]))
            entries.append((at["planes13"], at["planes2"], at["sc13"], at["sc2"], *places, int(slot >= 0), expert))
            reads[slot >= 0] += 1
        routes += mine
    counts = [5 + len(mine) for mine in choices.values()]
    header = [len(entries), len(routes)]
    return Result(entries, routes, header, counts if case.counted else [], reads if case.counted else [])


def run(kernel: Run, case: Case) -> tuple[Result, Result]:
    """What the kernel leaves, and what it should."""
    call, plan = prepared(case)
    workspace = torch.full((plan.workspace_bytes,), POISON, dtype=torch.uint8)
    params = experts.parameters(plan, call, workspace, torch.empty_like(call.x))[0]
    wanted = expected(case, call, plan)
    kernel(params, plan.steps[0].block, case.seed + 1)
    views = plan.views(workspace)
    header = views["header"].tolist()
    made = (Entry * len(views["entries"])).from_address(views["entries"].data_ptr())
    fields = [name for name, _ in Entry._fields_]
    entries = [tuple(getattr(entry, name) for name in fields) for entry in made]
    # All that was written, not only as many as the header says.
    entries = [entry for entry in entries if entry[-1] != UNWRITTEN]
    routes = [route for route in views["routes"].tolist() if route != UNWRITTEN]
    counts = [] if call.counts is None else call.counts.tolist()
    reads = [] if call.reads is None else call.reads.tolist()
    return Result(entries, routes, header, counts, reads), wanted


def built(folder: Path, replace: tuple[str, str] | None = None) -> Run:
    """The kernel compiled for this machine, with one text of it replaced."""
    for name in ("include", "src", "tests"):
        shutil.copytree(KERNELS / name, folder / name, ignore=lambda _, names: [n for n in names if n.endswith(".py")])
    if replace is not None:
        path = folder / "src" / "routing.cu"
        text = path.read_text()
        assert text.count(replace[0]) == 1
        path.write_text(text.replace(*replace))
    library = folder / "host.so"
    source = folder / "tests" / "routing_host.cpp"
    subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    called = ctypes.CDLL(str(library)).run
    return lambda params, threads, seed: called(ctypes.byref(params), threads, ctypes.c_uint32(seed))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return built(tmp_path_factory.mktemp("routing"))


@pytest.mark.parametrize("case", [drawn(seed) for seed in range(CASES)], ids=str)
def test_a_random_call_is_routed_and_counted(kernel: Run, case: Case) -> None:
    found, wanted = run(kernel, case)
    assert found == wanted


def test_the_cases_reach_every_branch() -> None:
    """Several entries of an expert, both kinds of reads in one call, padding, and calls that route nowhere."""
    seen = set()
    for seed in range(CASES):
        case = drawn(seed)
        call, plan = prepared(case)
        wanted = expected(case, call, plan)
        several = len({entry[-1] for entry in wanted.entries}) < len(wanted.entries)
        seen |= {("several", plan.chunk > shapes.DECODE_CHUNKS[-1])} if several and case.counted else set()
        seen |= {"both"} if case.counted and wanted.reads[0] > 7 and wanted.reads[1] > 11 else set()
        seen |= {"nowhere"} if not wanted.entries else set()
        seen |= {"padding"} if case.padding is not None and wanted.entries and case.counted else set()
    assert seen == {("several", True), ("several", False), "both", "nowhere", "padding"}


def test_most_routes_of_a_call(kernel: Run) -> None:
    """Counts of 16 bits, with every route to one expert and spread over all of them."""
    for ids in (torch.zeros(65535, 1), torch.arange(65535).remainder(256).view(-1, 1)):
        found, wanted = run(kernel, Case(256, ids.int(), None, None, True, 1))
        assert found == wanted


def test_reads_add_up_over_calls_and_nobody_counts_unasked(kernel: Run) -> None:
    case = Case(4, torch.tensor([[0, 1], [1, -1]], dtype=torch.int32), None, None, True, 0)
    call, plan = prepared(case)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8)
    params = experts.parameters(plan, call, workspace, torch.empty_like(call.x))[0]
    for _ in range(3):
        kernel(params, plan.steps[0].block, 0)
    assert call.reads.tolist() == [7 + 3 * 2, 11]
    params.reads = 0
    kernel(params, plan.steps[0].block, 0)
    assert call.reads.tolist() == [7 + 3 * 2, 11] and call.counts.tolist() == [5 + 4, 5 + 8, 5, 5]


@pytest.mark.parametrize(
    "replace",
    [
        ("if (p.padding && p.padding[route / p.top_k]) return -1;", ""),
        ("id < p.experts ? id : -1", "id < p.experts ? id : 0"),
        ("(total + p.chunk - 1) / p.chunk;", "total > 0;"),
        ("p.reads && slot >= 0", "p.reads && slot > 0"),
        ("atomicAdd(&scales_only, entries)", "atomicAdd(&scales_only, 1)"),
        ("all.entries - scales_only", "all.entries"),
        ("p.reads + 1, scales_only", "p.reads + 1, all.routes"),
        ("if (p.reads && threadIdx.x == 0)", "if (p.reads && threadIdx.x < 32)"),
        ("if (threadIdx.x == 0) scales_only = 0;", ""),
        ("scales_only = 0;\n    __syncthreads();", "scales_only = 0;"),
        ("p.header[1] = all.routes;\n    }\n    __syncthreads();", "p.header[1] = all.routes;\n    }"),
        ("rank] = base + lane;\n        __syncwarp();", "rank] = base + lane;"),
    ],
)
def test_a_wrong_kernel_is_found(tmp_path: Path, replace: tuple[str, str]) -> None:
    wrong = built(tmp_path, replace)
    for seed in range(CASES):
        found, wanted = run(wrong, drawn(seed))
        if found != wanted:
            return
    raise AssertionError("every call came out as it should")
