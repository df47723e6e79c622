"""One case held against everything it must hold."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import torch

from . import cases, chain, exact
from .cases import Case, Inputs
from .chain import Chain, Find, committed, make_call
from .data import Weights, weights

TOLERANCE = 3e-3
"""Most that ``||out - reference|| / ||reference||`` may be, over a whole output."""
OWN_TOLERANCE = 1e-6
"""Most that either GEMM may be off beyond a right rounding of what it was given (:func:`exact.beyond_rounding`): the
error of float32 sums of some thousand terms, with room."""


@dataclass(frozen=True)
class Verdict:
    """What one case gave.

    Attributes:
        error: relative error against float64.
        unavoidable: the part of it that two roundings to bfloat16 make in exact arithmetic.
        own: error of the worse GEMM beyond a right rounding of what it was given.
        failures: what did not hold, in words; empty if everything did.
    """

    case: Case
    error: float
    unavoidable: float
    own: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """A case with its weights, inputs and reference, for any number of builds of the kernels.

    Attributes:
        device: where the weights were drawn and the reference ran.
        layer: what the kernels read, on the GPU.
        given: inputs on ``device``.
        reference: float64.
    """

    case: Case
    device: str
    layer: Weights
    given: Inputs
    reference: exact.Exact


def prepare(case: Case, device: str | None = None) -> Prepared:
    """Draw a case's tensors and compute its reference on ``device``, by default the kernels'."""
    device = device or chain.DEVICE
    layer, given = weights(case.geometry, device), cases.inputs(case).to(device)
    return Prepared(case, device, layer.to(chain.DEVICE), given, exact.moe(layer, given, case.limit))


def judge(prepared: Prepared, find: Find = committed, poison: bool = True) -> Verdict:
    """Run a case and hold it against float64, itself, the counts of routings and reads, and its tiers run alone.

    Args:
        prepared: the case.
        find: where kernels come from.
        poison: fill what the kernels write before each run; off for a checker that looks for reads of memory that
            nobody wrote.
    """
    case, device, given, reference = prepared.case, prepared.device, prepared.given, prepared.reference
    experts, inputs = case.geometry.experts, given.to(chain.DEVICE)
    before = torch.arange(experts, dtype=torch.int64)
    counts = before.to(chain.DEVICE, copy=True)
    reads = torch.zeros(2, dtype=torch.int64, device=chain.DEVICE)
    called = Chain(make_call(case, prepared.layer, inputs, inputs.slots, counts)._replace(reads=reads), find)
    out, again = (_run(called, poison) for _ in range(2))
    failures = []
    error = exact.relative_error(out.to(device), reference.pure)
    if error > TOLERANCE:
        failures.append(f"relative error {error:.2e} is above {TOLERANCE:.0e}")
    own = _own_errors(prepared, called, out)
    for gemm, value in own.items():
        if value > OWN_TOLERANCE:
            failures.append(f"{gemm}: error beyond bfloat16's roundings {value:.2e} is above {OWN_TOLERANCE:.0e}")
    if not same(out, again):
        failures.append(f"a second run differs: {first_difference(out, again)}")
    if out.to(device)[~given.valid.any(-1)].count_nonzero():
        failures.append("a token without a route is not zero")
    expected = torch.bincount(given.ids[given.valid].long().cpu(), minlength=experts)
    counted, routes = counts.cpu() - before, int(called.views["header"].cpu()[1])
    wanted = [2 * times for times in reads_of(expected, given.slots, called.plan.chunk)]
    if reads.tolist() != wanted:
        failures.append(f"reads of planes and of scales alone are {reads.tolist()}, wanted {wanted}")
    if not torch.equal(counted, 2 * expected):
        failures.append(f"counts differ for experts {torch.nonzero(counted != 2 * expected).flatten().tolist()[:8]}")
    if routes != int(expected.sum()):
        failures.append(f"{routes} routes counted, {int(expected.sum())} given")
    if case.tier == "mixed":
        failures += _tiers_alone(case, prepared.layer, inputs, called, find, poison)
    unavoidable = exact.relative_error(reference.rounded, reference.pure)
    return Verdict(case, error, unavoidable, max(own.values()), tuple(failures))


def run(case: Case) -> Verdict:
    """:func:`prepare`, then :func:`judge` with the committed kernels."""
    return judge(prepare(case))


def reads_of(routings: torch.Tensor, slots: torch.Tensor | None, chunk: int) -> list[int]:
    """How often a call reads an expert: with its planes, and its scales alone.

    Args:
        routings: int64 ``[E]`` of each expert.
        slots: int32 ``[E]``, the row of each expert or -1; None for none.
        chunk: most routes for which an expert is read once.
    """
    entries = (routings.cpu() + chunk - 1) // chunk
    corrected = torch.zeros_like(entries, dtype=torch.bool) if slots is None else slots.cpu() >= 0
    return [int(entries[~corrected].sum()), int(entries[corrected].sum())]


def _own_errors(prepared: Prepared, called: Chain, out: torch.Tensor) -> dict[str, float]:
    """Each GEMM against float64 over what it was given; the second with the sum over routes."""
    count = int(prepared.given.valid.sum())
    routes, inner = (called.views[name][:count].to(prepared.device) for name in ("routes", "inner"))
    limit = prepared.case.limit
    drawn = weights(prepared.case.geometry, prepared.device)
    first, second = exact.from_inner(drawn, prepared.given, limit, routes, inner)
    found = {"first GEMM": (inner, first), "second GEMM": (out.to(prepared.device), second)}
    return {name: exact.beyond_rounding(*pair) for name, pair in found.items()}


def _run(called: Chain, poison: bool) -> torch.Tensor:
    if poison:
        called.poison()
    return called.run().clone()


def _tiers_alone(case: Case, layer: Weights, given: Inputs, mixed: Chain, find: Find, poison: bool) -> list[str]:
    """Every route of a mixed call equals, bit for bit, the same route with its tier for all experts."""
    everyone = torch.arange(case.geometry.experts, dtype=torch.int32, device=chain.DEVICE)
    valid = given.valid.flatten()
    resident = (given.slots[given.ids.flatten().clamp(min=0).long()] >= 0) & valid
    failures = []
    for tier, slots, which in (("base", None, valid & ~resident), ("fp4", everyone, resident)):
        alone = Chain(make_call(case, layer, given, slots, None), find)
        _run(alone, poison)
        found, expected = mixed.views["routed"][which], alone.views["routed"][which]
        if not same(found, expected):
            failures.append(f"{tier} routes of a mixed call differ: {first_difference(found, expected)}")
    return failures


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> str:
    """Where two tensors of one shape part, and how often."""
    where = torch.nonzero((a != b) | a.isnan() | b.isnan())
    if not len(where):
        return "signs of zeros"
    first = tuple(where[0].tolist())
    return f"{len(where)} of {a.numel()} values, first at {first}: {float(a[first])} and {float(b[first])}"


def summary(verdicts: list[Verdict]) -> dict[str, Any]:
    """What a result file keeps of a run."""
    worst = max(verdicts, key=lambda verdict: verdict.error)
    return {
        "cases": len(verdicts),
        "failed": sum(bool(verdict.failures) for verdict in verdicts),
        "tolerance": TOLERANCE,
        "own_tolerance": OWN_TOLERANCE,
        "largest_error": worst.error,
        "largest_error_case": str(worst.case),
        "largest_error_unavoidable": worst.unavoidable,
        "median_error": statistics.median(verdict.error for verdict in verdicts),
        "median_unavoidable": statistics.median(verdict.unavoidable for verdict in verdicts),
        "largest_own_error": max(verdict.own for verdict in verdicts),
        "median_own_error": statistics.median(verdict.own for verdict in verdicts),
        "mixed_cases": sum(verdict.case.tier == "mixed" for verdict in verdicts),
        "failures": [f"{verdict.case}: {'; '.join(verdict.failures)}" for verdict in verdicts if verdict.failures],
    }
