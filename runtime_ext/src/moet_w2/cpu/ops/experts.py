"""The stock MXFP4 experts: dequantised expert by expert, as each is needed."""

from __future__ import annotations

import torch
from torch.nn.functional import linear, silu

MXFP4 = 4
"""vLLM's number for this scheme among those of ``fused_experts_cpu``."""

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_NIBBLES = torch.cat((_E2M1, -_E2M1))
_PAIRS = torch.stack((_NIBBLES.repeat(16), _NIBBLES.repeat_interleave(16)), dim=1).view(torch.int64).flatten()
"""For each byte its two float32 values, low nibble first, as one int64: one look-up yields both."""
_SCALES = torch.exp2(torch.arange(256, dtype=torch.float32) - 127)


def dequantise(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """MXFP4 codes [N, K/2] (two a byte) and UE8M0 scales [N, K/32], both uint8, to float32 [N, K]."""
    rows, width = codes.shape
    pairs = _PAIRS.index_select(0, codes.view(torch.uint8).reshape(-1).int())
    wide = _SCALES.index_select(0, scales.view(torch.uint8).reshape(-1).int())
    return pairs.view(torch.float32).view(-1, 32).mul_(wide.unsqueeze(1)).view(rows, 2 * width)


def fused_experts(
    out: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    moe_comp_method: int,
    w1_scale: torch.Tensor | None,
    w2_scale: torch.Tensor | None,
    w1_zero: torch.Tensor | None,
    w2_zero: torch.Tensor | None,
    a1_scale: torch.Tensor | None,
    block_size: list[int] | None,
    w1_bias: torch.Tensor | None,
    w2_bias: torch.Tensor | None,
    alpha: float | None,
    limit: float | None,
    is_vnni: bool,
) -> None:
    """Weighted sum of the chosen experts' clamped SwiGLU into ``out`` [T, H]; ids < 0 contribute nothing.

    ``w1`` [E, 2I, H/2] holds gate rows, then up rows; ``w2`` [E, H, I/2]. Activations stay float32 throughout.
    """
    if moe_comp_method != MXFP4 or w1_scale is None or w2_scale is None:
        raise NotImplementedError(f"plain fused_experts_cpu computes MXFP4 experts, not method {moe_comp_method}")
    if alpha is not None or w1_bias is not None or w2_bias is not None:
        raise NotImplementedError("plain fused_experts_cpu has no biases and no alpha")
    x = hidden_states.float()
    total = torch.zeros_like(x)
    for expert in topk_ids[topk_ids >= 0].unique().tolist():
        match = topk_ids == expert
        token = match.any(1).nonzero().squeeze(1)
        weight = (topk_weights * match)[token].float().sum(1, keepdim=True)
        gate, up = linear(x[token], dequantise(w1[expert], w1_scale[expert])).chunk(2, dim=-1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        down = linear(silu(gate) * up, dequantise(w2[expert], w2_scale[expert]))
        total[token] += down * weight
    out.copy_(total)
