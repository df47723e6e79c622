"""Weight layouts. The compiled kernels want weights reordered for their tiles; the plain ones take them as they are."""

from __future__ import annotations

import torch


def convert_weight_packed(weight: torch.Tensor) -> torch.Tensor:
    """The weight in memory of its own: BF16 as float32, so that it is widened once; anything else as it is."""
    return weight.float() if weight.dtype == torch.bfloat16 else weight.clone()


def convert_scale_packed(scale: torch.Tensor) -> torch.Tensor:
    """The scales themselves, in memory of their own."""
    return scale.clone()


def bmm(out: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, is_vnni: bool, scale: torch.Tensor | None) -> None:
    """``out[g] = mat1[g] @ mat2[g].T`` for mat1 [G, M, K], mat2 [G, N, K]; rounded once, to the dtype of ``out``."""
    if scale is not None:
        raise NotImplementedError("plain bmm_cpu takes no scale")
    out.copy_(torch.bmm(mat1.float(), mat2.float().transpose(1, 2)))
