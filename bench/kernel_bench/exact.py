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


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """``||out - reference|| / ||reference||``; infinite where anything is not finite, or differs from all zeros."""
    difference, norm = float((out.double() - reference).norm()), float(reference.norm())
    if norm == 0:
        return 0.0 if difference == 0 else float("inf")
    error = difference / norm
    return error if error == error else float("inf")
