"""Hyper-connections: the mix of residual streams before and after a block, and at the head."""

from __future__ import annotations

import numpy as np
import torch


def pre(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_mult: int,
    sinkhorn_iters: int,
    rms_eps: float,
    hc_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Block input and mixing weights of streams ``x`` [T, C, H].

    Returns:
        block input [T, H] in the dtype of ``x``, post weights [T, C] and combination [T, C, C], float32. The
        combination is made doubly stochastic by ``sinkhorn_iters`` rounds of row and column normalisation.
    """
    mixes = _mixes(x, hc_fn, rms_eps)
    gate = torch.sigmoid(mixes[:, :hc_mult] * hc_scale[0] + hc_base[:hc_mult]) + hc_eps
    after = torch.sigmoid(mixes[:, hc_mult : 2 * hc_mult] * hc_scale[1] + hc_base[hc_mult : 2 * hc_mult]) * 2
    logits = mixes[:, 2 * hc_mult :] * hc_scale[2] + hc_base[2 * hc_mult :]
    comb = logits.view(-1, hc_mult, hc_mult).softmax(-1) + hc_eps
    _balance(comb, sinkhorn_iters, hc_eps)
    return _weighted(gate, x), after, comb


def post(x: torch.Tensor, residual: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """Streams after a block: block output ``x`` [T, H] spread by ``post``, ``residual`` [T, C, H] mixed by ``comb``."""
    spread = post.unsqueeze(-1) * x.float().unsqueeze(1)
    return (spread + comb.transpose(1, 2) @ residual.float()).to(residual.dtype)


def head(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    hc_eps: float,
    norm_eps: float,
) -> torch.Tensor:
    """Streams [T, C, H] joined into one [T, H] before the final norm."""
    return _weighted(torch.sigmoid(_mixes(x, hc_fn, norm_eps) * hc_scale[0] + hc_base) + hc_eps, x)


def _balance(comb: torch.Tensor, rounds: int, eps: float) -> None:
    """Normalise columns, then rows and columns alternately, in place; rows count as normalised before the first round.

    In NumPy: for matrices of this size its calls cost a third of torch's, and there are six to a round.
    """
    m = comb.numpy()
    m /= m.sum(-2, keepdims=True) + np.float32(eps)
    for _ in range(rounds - 1):
        m /= m.sum(-1, keepdims=True) + np.float32(eps)
        m /= m.sum(-2, keepdims=True) + np.float32(eps)


def _mixes(x: torch.Tensor, hc_fn: torch.Tensor, eps: float) -> torch.Tensor:
    flat = x.flatten(1).float()
    return (flat @ hc_fn.t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def _weighted(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (weights.unsqueeze(1) @ x.float()).squeeze(1).to(x.dtype)
