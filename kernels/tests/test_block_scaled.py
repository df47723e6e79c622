"""The block-scaled kernels, whole and thread by thread on a CPU, against float64 (block_scaled_host.cpp)."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pins
import pytest
import torch

from moet_w2 import planes
from moet_w2.correction import codes as fp4_codes
from moet_w2.kernels.params import Entry, GemmParams

pytestmark = pytest.mark.usefixtures("host_compiler")

KERNELS = pins.ROOT / "kernels"
LIMIT = 10.0
W2_LEVELS = torch.tensor([-4.0, -1.0, 1.0, 4.0], dtype=torch.float64)
FP4_LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
HIDDEN, WIDTH = 384, 128  # three tiles along K for the first GEMM, one for the second
COUNTS, TIERS = (1, 3, 8), (False, True, False)  # tokens of each entry, and whether its weights are FP4 codes
# Of the values that a GEMM makes, relative to their root mean square.
EXACT_SUMS = 1e-5  # float32 sums
BF16 = 2.0**-8  # one step of a result as large as the root mean square
E4M3 = 0.06  # of e4m3 activations beside the exact ones: bench/results/kernels_activations.json

Run = Callable[[int, GemmParams, int, int], None]


@dataclass
class Matrix:
    """One expert's weights of one GEMM: as the kernel reads them, and as float64 ``[N, K]``."""

    packed: torch.Tensor
    scales: torch.Tensor
    values: torch.Tensor


def matrix(rows: int, cols: int, fp4: bool, draw: torch.Generator) -> Matrix:
    numbers = torch.randint(0, 16 if fp4 else 4, (rows, cols), dtype=torch.uint8, generator=draw)
    exponents = torch.randint(124, 131, (rows, cols // 32), dtype=torch.uint8, generator=draw)
    nibbles = numbers[:, ::2] | numbers[:, 1::2] << 4
    levels = FP4_LEVELS if fp4 else W2_LEVELS
    scales = torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)
    packed = fp4_codes.pack(nibbles) if fp4 else planes.pack_codes(nibbles)
    return Matrix(packed, planes.pack_scales(exponents), levels[numbers.long()] * scales)


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """float64 ``[..., K]`` of bfloat16, rounded to e4m3 over the power of two at or above a 448th of a block's most."""
    blocks = x.double().unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.log2(blocks.abs().amax(-1, keepdim=True) / 448).ceil())
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).flatten(-2)


def swiglu(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, -1)
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return gate * gate.sigmoid() * up


class Case:
    """Entries of several experts with one route a token, in an order of their own."""

    def __init__(self, draw: torch.Generator) -> None:
        self.first = [matrix(2 * WIDTH, HIDDEN, fp4, draw) for fp4 in TIERS]
        self.second = [matrix(HIDDEN, WIDTH, fp4, draw) for fp4 in TIERS]
        self.routes = torch.randperm(sum(COUNTS), generator=draw).int()
        self.weights = 2.0 ** torch.randint(-2, 2, (sum(COUNTS),), generator=draw)
        self.starts = [sum(COUNTS[:i]) for i in range(len(COUNTS))]
        entries = [
            Entry(one.packed.data_ptr(), two.packed.data_ptr(), one.scales.data_ptr(), two.scales.data_ptr(), *rest)
            for one, two, *rest in zip(self.first, self.second, self.starts, COUNTS, TIERS, range(9), strict=False)
        ]
        self.entries = (Entry * len(entries))(*entries)
        self.header = torch.tensor([len(entries), sum(COUNTS)], dtype=torch.int32)

    def run(self, kernel: Run, number: int, x: torch.Tensor, blocks: int, threads: int) -> torch.Tensor:
        """What GEMM 13 (bfloat16 ``[routes, WIDTH]``) or 2 (float32 ``[routes, HIDDEN]``) makes of ``x``."""
        cols, out_cols, dtype = (HIDDEN, WIDTH, torch.bfloat16) if number == 13 else (WIDTH, HIDDEN, torch.float32)
        out = torch.full((sum(COUNTS), out_cols), torch.nan, dtype=dtype)
        at = out.data_ptr()
        where = (at, 0) if number == 13 else (0, at)
        pointers = (ctypes.addressof(self.entries), *(t.data_ptr() for t in (self.header, self.routes, x)), *where)
        sizes = (cols, out_cols, 1, len(COUNTS), sum(COUNTS), LIMIT)
        kernel(number, GemmParams(*pointers, self.weights.data_ptr(), *sizes), blocks, threads)
        return out

    def expected(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """The same in float64 of float64 ``x``."""
        parts = []
        for one, two, start, count in zip(self.first, self.second, self.starts, COUNTS, strict=True):
            places = slice(start, start + count)
            if number == 13:
                parts.append(swiglu(x[self.routes[places].long()] @ one.values.T))
            else:
                parts.append(x[places] @ two.values.T * self.weights[self.routes[places].long(), None])
        made = torch.cat(parts)
        return made if number == 13 else torch.empty_like(made).index_copy_(0, self.routes.long(), made)


def bfloat16(rows: int, cols: int, draw: torch.Generator) -> torch.Tensor:
    """Activations whose blocks differ much in size."""
    sizes = 2.0 ** torch.randint(-6, 6, (rows, cols // 32), generator=draw).repeat_interleave(32, 1)
    return (torch.randn(rows, cols, generator=draw) * sizes / 64).bfloat16()


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Greatest error over the root mean square of what is expected; NaN where a value is missing."""
    return float((found.double() - expected).abs().amax() / expected.square().mean().sqrt())


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def built(folder: Path, replace: tuple[str, str, str] | None = None) -> Run:
    """The kernels compiled for this machine, with one text replaced in one file."""
    for name in ("include", "src", "tests"):
        shutil.copytree(KERNELS / name, folder / name, ignore=lambda _, names: [n for n in names if n.endswith(".py")])
    if replace is not None:
        path = folder / replace[0]
        text = path.read_text()
        assert text.count(replace[1]) == 1
        path.write_text(text.replace(*replace[1:]))
    library = folder / "host.so"
    source = folder / "tests" / "block_scaled_host.cpp"
    subprocess.run(["g++", "-std=c++17", "-Og", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    run = ctypes.CDLL(str(library)).run
    return lambda number, params, blocks, threads: run(number, ctypes.byref(params), blocks, threads)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return built(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def deviation(kernel: Run, blocks: int = 3, threads: int = 128) -> dict[int, float]:
    """Errors of both GEMMs against float64 sums over e4m3 activations."""
    draw = torch.Generator().manual_seed(0)
    case, found = Case(draw), {}
    for number, cols in ((13, HIDDEN), (2, WIDTH)):
        x = bfloat16(sum(COUNTS), cols, draw)
        found[number] = error(case.run(kernel, number, x, blocks, threads), case.expected(number, e4m3(x)))
    return found


def holds(found: dict[int, float]) -> bool:
    return found[13] < 2 * BF16 and found[2] < EXACT_SUMS


@pytest.mark.parametrize(("blocks", "threads"), [(3, 128), (2, 64), (50, 32)])
def test_the_kernels_sum_what_they_should(kernel: Run, blocks: int, threads: int) -> None:
    found = deviation(kernel, blocks, threads)
    assert holds(found), found


@pytest.mark.parametrize(
    "replace",
    [
        ("include/operands_bs.cuh", "__byte_perm(word, 0, 0x2301)", "__byte_perm(word, 0, 0x3210)"),
        ("include/operands_bs.cuh", "0x2604", "0x6240"),
        ("include/operands_bs.cuh", "magnitude + 0x1Fu", "magnitude"),
        ("src/decode_bs.cu", "(lane & 1) * 4", "(lane >> 1 & 1) * 4"),
        ("src/decode_bs.cu", "add_block<2>", "add_block<1>"),
    ],
)
def test_wrong_kernels_are_found(tmp_path: Path, replace: tuple[str, str, str]) -> None:
    found = deviation(built(tmp_path, replace))
    assert not holds(found), found


def test_activations_that_e4m3_holds_give_exact_sums(kernel: Run, draw: torch.Generator) -> None:
    case = Case(draw)
    x = (torch.randint(-8, 9, (sum(COUNTS), WIDTH), generator=draw) * 2.0**-3).bfloat16()
    assert torch.equal(case.run(kernel, 2, x, 2, 128).double(), case.expected(2, x.double()))


def test_others_cost_what_e4m3_costs(kernel: Run, draw: torch.Generator) -> None:
    case = Case(draw)
    for number, cols in ((13, HIDDEN), (2, WIDTH)):
        x = torch.randn(sum(COUNTS), cols, generator=draw).bfloat16() / 64
        found = distance(case.run(kernel, number, x, 2, 128), case.expected(number, x.double()))
        assert 0.01 < found < E4M3


def test_zeros_give_zero_and_what_is_not_a_number_is_seen(kernel: Run, draw: torch.Generator) -> None:
    case = Case(draw)
    run = partial(case.run, kernel, 2, blocks=1, threads=32)
    zeros = torch.zeros(sum(COUNTS), WIDTH, dtype=torch.bfloat16)
    assert not run(zeros).any()
    for value in (torch.inf, torch.nan):
        x = zeros.clone()
        x[2, 40] = value
        seen = run(x).isnan().all(1)
        assert seen.sum() == 1 and seen[case.routes[2]]
