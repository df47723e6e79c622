"""A layer's experts in float64: what the kernels are held against."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .cases import Inputs
from .data import Weights


class Exact(NamedTuple):
    """Outputs in float64 ``[T, H]``.

    Attributes:
        pure: from the bfloat16 activations and the quantised weights, nothing rounded.
        rounded: the same with the two roundings to bfloat16 that a layer in this dtype cannot avoid, of the inner
            activation and of the output: the part of a kernel's error that is not its own.
    """

    pure: torch.Tensor
    rounded: torch.Tensor


def moe(weights: Weights, given: Inputs, limit: float | None) -> Exact:
    """Run the routed experts one by one."""
    tokens, hidden = given.x.shape
    x = given.x.double()
    pure = torch.zeros(tokens, hidden, dtype=torch.float64, device=x.device)
    rounded = torch.zeros_like(pure)
    chosen = torch.where(given.valid, given.ids, -1)
    for expert in torch.unique(chosen).tolist():
        if expert < 0:
            continue
        token, choice = torch.nonzero(chosen == expert, as_tuple=True)
        fp4 = given.slots is not None and int(given.slots[expert]) >= 0
        gate_up, down = weights.exact(expert, fp4)
        gate, up = (x[token] @ gate_up.T).chunk(2, dim=-1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        inner = torch.nn.functional.silu(gate) * up
        factor = given.weights[token, choice].double().unsqueeze(-1)
        pure.index_add_(0, token, factor * (inner @ down.T))
        rounded.index_add_(0, token, factor * (inner.bfloat16().double() @ down.T))
    return Exact(pure, rounded.bfloat16().double())


def from_inner(
    weights: Weights, given: Inputs, limit: float | None, routes: torch.Tensor, inner: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both GEMMs apart: what the first should have given, and what the second should have made of what it did give.

    Args:
        weights, given, limit: as for :func:`moe`.
        routes: int ``[R]``, the kernels' order of routes.
        inner: bfloat16 ``[R, I]``, what the first GEMM wrote, in that order.

    Returns:
        float64 ``[R, I]`` and ``[T, H]``.
    """
    tokens, hidden = given.x.shape
    x, routes = given.x.double(), routes.long()
    token, expert_of = routes // given.ids.shape[1], given.ids.flatten()[routes]
    factor = given.weights.flatten()[routes].double().unsqueeze(-1)
    first = torch.zeros(inner.shape, dtype=torch.float64, device=x.device)
    second = torch.zeros(tokens, hidden, dtype=torch.float64, device=x.device)
    for expert in torch.unique(expert_of).tolist():
        rows = torch.nonzero(expert_of == expert).flatten()
        fp4 = given.slots is not None and int(given.slots[expert]) >= 0
        gate_up, down = weights.exact(expert, fp4)
        gate, up = (x[token[rows]] @ gate_up.T).chunk(2, dim=-1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        first[rows] = torch.nn.functional.silu(gate) * up
        second.index_add_(0, token[rows], factor[rows] * (inner[rows].double() @ down.T))
    return first, second


def beyond_rounding(found: torch.Tensor, exact: torch.Tensor) -> float:
    """How far bfloat16 values are from exact ones beyond half a unit in the last place, as a share of the norm.

    Zero for exact values rounded to the nearest, whatever rounding costs; a sum in float32 that falls on the other side
    of a rounding adds its own error only, not the step of the rounding.
    """
    # exact = m * 2**e with 0.5 <= m < 1; bfloat16 keeps 8 bits, so half a unit is 2**(e - 9).
    half_unit = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 9)
    excess = ((found.double() - exact).abs() - half_unit).clamp(min=0)
    norm, beyond = float(exact.norm()), float(excess.norm())
    if norm == 0:
        return 0.0 if found.count_nonzero() == 0 else float("inf")
    return beyond / norm if beyond == beyond else float("inf")


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """``||out - reference|| / ||reference||``; infinite where anything is not finite, or differs from all zeros."""
    difference, norm = float((out.double() - reference).norm()), float(reference.norm())
    if norm == 0:
        return 0.0 if difference == 0 else float("inf")
    error = difference / norm
    return error if error == error else float("inf")
