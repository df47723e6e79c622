"""Faster but equal forms of two functions that transformers lets a user replace: experts, and attention with a sink.

transformers keeps the model; these only avoid its eager versions' expansions (key rows copied to every head, scattered
gradients) that dominate the time of so small a model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from demo.make.hf import ALL_ATTENTION_FUNCTIONS, ALL_EXPERTS_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS

EXPERTS_NAME = "demo_sorted"
ATTENTION_NAME = "demo_sink"
# Feature width is padded so that matrix products keep aligned rows.
_EXTRA = 8


class _Spread(torch.autograd.Function):
    """rows [n * k, h]: token order // k for each slot; the gradient gathers through the inverse order."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor, k: int) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        ctx.k = k
        return tokens[order // k]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse].unflatten(0, (-1, ctx.k)).sum(1), None, None, None


class _Permute(torch.autograd.Function):
    """rows[order]; the gradient is a gather through the inverse order."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse], None, None


def _grouped(rows: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """rows sorted by expert times each expert's weight [experts, out, in], transposed."""
    if rows.is_cuda and rows.dtype == torch.bfloat16:
        ends = counts.cumsum(0, dtype=torch.int32)
        return functional.grouped_mm(rows, weights.transpose(-2, -1), offs=ends)
    parts = rows.split(counts.tolist())
    return torch.cat([functional.linear(part, weight) for part, weight in zip(parts, weights, strict=True)])


def sorted_experts(
    self: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Routed experts of one layer, [tokens, hidden] -> the same; each expert sees its tokens as one block."""
    k = top_k_index.shape[-1]
    chosen = top_k_index.flatten()
    order = chosen.argsort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    ones = torch.ones_like(chosen, dtype=torch.int32)
    counts = torch.zeros(self.num_experts, dtype=torch.int32, device=order.device).scatter_add_(0, chosen, ones)
    rows = _Spread.apply(hidden_states, order, inverse, k)
    rows = _grouped(self._apply_gate(_grouped(rows, self.gate_up_proj, counts)), self.down_proj, counts)
    weights = top_k_weights.to(rows.dtype).unsqueeze(-1)
    return (_Permute.apply(rows, inverse, order).unflatten(0, (-1, k)) * weights).sum(1)


def sink_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of all heads over the one shared row of keys that are also the values, with a sink a head.

    The sink is one more key: a unit vector in an extra feature, in which each query carries its head's sink logit.
    query [batch, heads, length, d], key = value [batch, 1, keys, d], mask [batch, 1, length, keys] additive.
    """
    batch, heads, length, _ = query.shape
    sinks = module.sinks.to(query.dtype).view(1, heads, 1, 1).expand(batch, heads, length, 1)
    extra = query.new_zeros(batch, heads, length, _EXTRA - 1)
    wide = torch.cat((query * scaling, sinks, extra), -1).flatten(1, 2)
    rows = value.squeeze(1)
    missing = -(rows.shape[1] + 1) % _EXTRA
    keys = functional.pad(rows, (0, _EXTRA, 0, 1 + missing))
    sink_key = torch.zeros_like(keys)
    sink_key[:, rows.shape[1], -_EXTRA] = 1.0
    scores = torch.bmm(wide, (keys + sink_key).transpose(1, 2)).unflatten(1, (heads, length))
    mask = functional.pad(attention_mask.to(query.dtype), (0, 1))
    mask = functional.pad(mask, (0, missing), value=torch.finfo(query.dtype).min)
    shares = (scores + mask).softmax(-1)
    mixed = torch.bmm(shares.flatten(1, 2), functional.pad(rows, (0, 0, 0, 1 + missing)))
    return mixed.unflatten(1, (heads, length)).transpose(1, 2), None


ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, sorted_experts)
ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, sink_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
