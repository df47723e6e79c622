"""MXFP4 (e2m1 codes, UE8M0 scales over 32 inputs) and the 2-bit codebook on the same scales.

One rounding rule serves training and export: the value that a training step computes with is the value that the
exported bytes decode to.
"""

from __future__ import annotations

import torch

from demo.make.geometry import FP4_BLOCK

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Halfway between neighbouring magnitudes; a value on a boundary rounds up.
BOUNDARIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
# Index of the first magnitude that the 2-bit codebook sends to 4 (3, 4, 6); those below go to 1.
FIRST_LARGE = 5
# Mean |w| over scale at which the 2-bit levels 1 and 4 fit a bell-shaped block best.
MEAN_OVER_SCALE = 2.0
ONE_SIGN_LIMIT = 0.95


def block_exponents(weight: torch.Tensor) -> torch.Tensor:
    """Exponent k of each block's scale 2**k; weight [..., n] float -> [..., n / 32] float (whole numbers)."""
    blocks = weight.unflatten(-1, (-1, FP4_BLOCK))
    mean = blocks.abs().mean(-1).clamp_min(2.0**-100)
    return torch.round(torch.log2(mean / MEAN_OVER_SCALE))


def encode(weight: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Nibbles [..., n] uint8: bit 3 the sign of the master weight (so -0 exists), bits 0-2 the magnitude's index."""
    scaled = weight.float() / torch.exp2(exponents).repeat_interleave(FP4_BLOCK, -1)
    boundaries = torch.tensor(BOUNDARIES, device=weight.device)
    index = torch.bucketize(scaled.abs(), boundaries, right=True, out_int32=True).to(torch.uint8)
    return index | (torch.signbit(scaled).to(torch.uint8) << 3)


def decode_fp4(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Values of the nibbles, float32."""
    table = torch.tensor(MAGNITUDES + tuple(-m for m in MAGNITUDES), device=codes.device)
    return table[codes.long()] * torch.exp2(exponents).repeat_interleave(FP4_BLOCK, -1)


def decode_w2(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """The 2-bit value of each nibble: magnitude 1 or 4, sign kept, zeros by their sign bit; float32."""
    small = torch.where(codes & 8 > 0, -1.0, 1.0)
    level = torch.where((codes & 7) >= FIRST_LARGE, 4.0 * small, small)
    return level * torch.exp2(exponents).repeat_interleave(FP4_BLOCK, -1)


def zeros_of_one_sign(codes: torch.Tensor) -> bool:
    """True where over 95% of a tensor's zeros carry one sign: readers then ignore the sign of its zeros."""
    negative = int((codes == 8).sum())
    total = negative + int((codes == 0).sum())
    return total > 0 and max(negative, total - negative) > ONE_SIGN_LIMIT * total


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Two nibbles a byte, the even input in the low half: [out, n] -> [out, n / 2] int8."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).view(torch.int8)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of pack: [out, n / 2] int8 -> [out, n] uint8."""
    raw = packed.view(torch.uint8)
    return torch.stack((raw & 15, raw >> 4), -1).flatten(-2)


def quantise(weight: torch.Tensor, two_bit: bool) -> torch.Tensor:
    """What the exported bytes decode to, as MXFP4 or as 2 bits; float32."""
    exponents = block_exponents(weight)
    codes = encode(weight, exponents)
    return decode_w2(codes, exponents) if two_bit else decode_fp4(codes, exponents)
