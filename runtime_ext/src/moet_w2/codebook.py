"""MXFP4 codes to 2-bit codes, and what both mean as numbers.

An MXFP4 code is an e2m1 nibble ``s e e m`` (OCP Microscaling Formats v1.0, table 5): magnitudes
0, 0.5, 1, 1.5, 2, 3, 4, 6. A 2-bit code 0..3 stands for -4, -1, +1, +4. Magnitudes up to 2 become 1,
magnitudes from 3 become 4, the sign stays. A zero takes its sign from its sign bit; where over 95% of a
tensor's zeros carry one sign that bit says nothing, and zeros alternate in a checkerboard instead, so that
they do not add up to a bias.

Codes travel here in the checkpoint's packing: uint8 ``[rows, K / 2]``, element 2j in the low nibble.
"""

from __future__ import annotations

import torch

from .quantizer_abi import QUANTIZER_ABI as QUANTIZER_ABI
from .quantizer_abi import ZERO_MODE as ZERO_MODE

LEVELS = (-4.0, -1.0, 1.0, 4.0)
"""Value of each 2-bit code, exact in e4m3, bf16 and e2m1."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitude of each e2m1 code, sign bit off."""
MAX_SCALE = 191
"""Largest UE8M0 byte that is served, 2 ** 64: above it the CUDA kernels' FP4 arithmetic overflows."""

_CHUNK_BYTES = 1 << 18  # small enough that the passes below work in a core's own cache


def to_two_bit(codes: torch.Tensor) -> torch.Tensor:
    """Map packed MXFP4 codes to packed 2-bit codes, one nibble to one nibble.

    Args:
        codes: uint8 or int8 ``[rows, K / 2]``, K / 2 a multiple of 8; one whole tensor of the checkpoint, since
            the rule for zeros looks at all of it.

    Returns:
        uint8 ``[rows, K / 2]``: each nibble holds a 2-bit code 0..3, its upper two bits are 0.
    """
    source = codes.contiguous().view(torch.uint8)
    rows, row_bytes = source.shape
    words = source.view(torch.int64)
    out = torch.empty_like(words)
    lines = max(1, _CHUNK_BYTES // row_bytes)
    chunks = [slice(row, min(row + lines, rows)) for row in range(0, rows, lines)]
    scratch = torch.empty_like(words[chunks[0]])
    rewrite = _zeros_say_nothing(words, chunks, scratch)
    for chunk in chunks:
        part = _checkerboard(words[chunk], chunk.start) if rewrite else words[chunk]
        _map(part, out[chunk], scratch[: part.shape[0]])
    return out.view(torch.uint8)


def two_bit_values(codes: torch.Tensor) -> torch.Tensor:
    """float32 values of 2-bit codes (any integer dtype, any shape)."""
    return torch.tensor(LEVELS, device=codes.device)[codes.long()]


def mxfp4_values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Dequantise MXFP4.

    Args:
        codes: uint8 or int8 ``[..., K / 2]`` as in the checkpoint.
        scales: uint8 ``[..., K / 32]``, UE8M0 bytes.

    Returns:
        float32 ``[..., K]``.
    """
    packed = codes.contiguous().view(torch.uint8)
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return e2m1_values(nibbles) * scale_values(scales).repeat_interleave(32, dim=-1)


def e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    """float32 values of e2m1 codes 0..15 (any integer dtype, any shape)."""
    return torch.tensor(E2M1 + tuple(-m for m in E2M1), device=codes.device)[codes.long()]


def scale_values(scales: torch.Tensor) -> torch.Tensor:
    """float32 values of UE8M0 bytes: ``2 ** (byte - 127)``, byte 255 is NaN (OCP MX v1.0, section 5.4.1).

    The CUDA kernels add the byte to a bfloat16 exponent instead. So a weight +-1 under byte 0, here 2 ** -127, is 0
    there, and FP4 values are exact under bytes 64 to :data:`MAX_SCALE` only: below they fade to zero.
    """
    return scales.contiguous().view(torch.float8_e8m0fnu).float()


# Each int64 below holds 16 nibbles, and a constant repeats one nibble 16 times. Writing into buffers that stay
# in cache instead of allocating makes these passes several times faster. torch has no unsigned shift, so a mask
# follows every shift and drops what the sign bit drags in.
_ONES = 0x1111111111111111
_ODD_COLUMNS, _EVEN_COLUMNS = 0x1010101010101010, 0x0101010101010101


def _map(words: torch.Tensor, out: torch.Tensor, sign: torch.Tensor) -> None:
    """2-bit code of every nibble: bit 1 = not sign, bit 0 = (magnitude code >= 5) xor sign."""
    torch.bitwise_right_shift(words, 1, out=out)
    out |= words
    torch.bitwise_right_shift(words, 2, out=sign)
    out &= sign
    sign >>= 1
    out ^= sign
    out &= _ONES
    torch.bitwise_not(sign, out=sign)
    sign &= _ONES
    sign <<= 1
    out |= sign


def _zeros(words: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """1 in every nibble whose magnitude is zero, else 0."""
    torch.bitwise_right_shift(words, 1, out=out)
    out |= words
    out |= words >> 2
    torch.bitwise_not(out, out=out)
    out &= _ONES
    return out


def _checkerboard(words: torch.Tensor, first_row: int) -> torch.Tensor:
    """Words ``[rows, K / 16]`` with the sign of every zero set by its position: + where row + column is even."""
    negative = torch.full((words.shape[0], 1), _ODD_COLUMNS, dtype=torch.int64, device=words.device)
    negative[(first_row + 1) % 2 :: 2] = _EVEN_COLUMNS
    zero = _zeros(words, torch.empty_like(words))
    return (words & ~(zero << 3)) | ((zero & negative) << 3)


def _zeros_say_nothing(words: torch.Tensor, chunks: list[slice], scratch: torch.Tensor) -> bool:
    """True where over 95% of the tensor's zeros carry one sign."""
    zeros = negatives = 0
    for chunk in chunks:
        part = words[chunk]
        zero = _zeros(part, scratch[: part.shape[0]])
        zeros += _count(zero)
        zero &= part >> 3
        negatives += _count(zero)
    return 20 * max(negatives, zeros - negatives) > 19 * zeros  # in integers, as on the GPU


def _count(flags: torch.Tensor) -> int:
    """Number of nibbles that hold 1, for words whose nibbles hold 0 or 1."""
    octets = (flags & _EVEN_COLUMNS) + ((flags >> 4) & _EVEN_COLUMNS)
    # The product's top byte is the sum of all eight bytes, at most 16.
    return int((octets.mul_(_EVEN_COLUMNS) >> 56).sum())
