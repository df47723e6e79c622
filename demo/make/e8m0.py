"""UE8M0 scales: one byte that holds a power of two's exponent plus 127."""

from __future__ import annotations

import torch

BIAS = 127


def to_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Whole exponents (float) -> float8_e8m0fnu, byte for byte."""
    return (exponents + BIAS).clamp(0, 254).to(torch.uint8).view(torch.float8_e8m0fnu)


def from_e8m0(scales: torch.Tensor) -> torch.Tensor:
    """float8_e8m0fnu -> exponents as float32."""
    return scales.view(torch.uint8).float() - BIAS
