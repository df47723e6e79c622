"""Expert choice: bias-corrected top-k and hash routing with sqrt(softplus) scores."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus


def biased_topk(
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    correction_bias: torch.Tensor,
    topk: int,
    renormalize: bool,
    scoring_func: str,
    num_fused_shared_experts: int,
    routed_scaling_factor: float | None,
    apply_routed_scaling_factor_on_output: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-k of score + bias; weights are the unbiased scores. Returns (weights float32, ids int32), each [T, topk]."""
    _refuse_fused(num_fused_shared_experts)
    scores = _scores(gating_output, scoring_func)
    ids = (scores + correction_bias.float()).topk(topk, dim=-1).indices
    factor = routed_scaling_factor if apply_routed_scaling_factor_on_output and routed_scaling_factor else 1.0
    return _weights(scores, ids, renormalize, factor), ids.int()


def hash_topk(
    gating_output: torch.Tensor,
    tid2eid: torch.Tensor,
    topk: int,
    scoring_func: str,
    num_fused_shared_experts: int,
    num_experts: int,
    routed_scaling_factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts given by the table row of each token, [T, topk]. Returns (weights float32, ids int32)."""
    _refuse_fused(num_fused_shared_experts)
    scores = _scores(gating_output, scoring_func)
    return _weights(scores, tid2eid.long(), True, routed_scaling_factor), tid2eid.int().clone()


def _scores(logits: torch.Tensor, scoring_func: str) -> torch.Tensor:
    if scoring_func != "sqrtsoftplus":
        raise NotImplementedError(f"plain routing knows the score sqrtsoftplus, not {scoring_func!r}")
    return softplus(logits.float()).sqrt()


def _weights(scores: torch.Tensor, ids: torch.Tensor, renormalize: bool, factor: float) -> torch.Tensor:
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights * (factor / weights.sum(-1, keepdim=True))
    return weights


def _refuse_fused(count: int) -> None:
    if count:
        raise NotImplementedError("plain routing does not fuse shared experts")
