"""FP8 e4m3 weights with one UE8M0 scale for each block of 128 x 128."""

from __future__ import annotations

import torch

from demo.make.geometry import FP8_BLOCK

E4M3_MAX = 448.0


def _pad(weight: torch.Tensor) -> torch.Tensor:
    rows, columns = weight.shape
    return torch.nn.functional.pad(weight, (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))


def block_exponents(weight: torch.Tensor) -> torch.Tensor:
    """Smallest k with every |w| <= 448 * 2**k in the block; [out, in] -> [ceil(out/128), ceil(in/128)] float."""
    blocks = _pad(weight.float()).unflatten(0, (-1, FP8_BLOCK)).unflatten(-1, (-1, FP8_BLOCK))
    largest = blocks.abs().amax((1, 3)).clamp_min(2.0**-100)
    return torch.ceil(torch.log2(largest / E4M3_MAX))


def spread(exponents: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Each block's scale 2**k at every element of a weight of the given shape."""
    scale = torch.exp2(exponents).repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return scale[: shape[0], : shape[1]]


def encode(weight: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """The e4m3 values, dtype float8_e4m3fn."""
    return (weight.float() / spread(exponents, weight.shape)).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def decode(values: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """float32 weights."""
    return values.float() * spread(exponents, values.shape)


def quantise(weight: torch.Tensor) -> torch.Tensor:
    """What the exported bytes decode to; float32."""
    exponents = block_exponents(weight)
    return decode(encode(weight, exponents), exponents)


def fake_quantise_row(row: torch.Tensor, block: int = 64) -> torch.Tensor:
    """A cached key/value row as the fp8_ds_mla cache keeps it: e4m3 with a power-of-two scale for each 64 values.

    The gradient passes straight through.
    """
    master = row.detach().float().unflatten(-1, (-1, block))
    largest = master.abs().amax(-1, keepdim=True).clamp_min(1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(largest / E4M3_MAX)))
    value = (master / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float() * scale
    return row + (value.flatten(-2).to(row.dtype) - row.detach())
