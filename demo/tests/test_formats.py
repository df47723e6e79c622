"""MXFP4, the 2-bit codebook, FP8 blocks and UE8M0 scales."""

from __future__ import annotations

import pytest
import torch

from demo.make import e8m0, fp8, mxfp4

W2_OF_NIBBLE = [1, 1, 1, 1, 1, 4, 4, 4, -1, -1, -1, -1, -1, -4, -4, -4]
FP4_OF_NIBBLE = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def every_nibble() -> torch.Tensor:
    """[2, 32]: all codes twice, in either order."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    return torch.stack((codes, codes.flip(0)))


def test_each_nibble_has_its_two_values() -> None:
    exponents = torch.tensor([[0.0], [-3.0]])
    codes = every_nibble()
    wanted = torch.tensor(FP4_OF_NIBBLE).repeat(2)
    assert torch.equal(mxfp4.decode_fp4(codes, exponents), torch.stack((wanted, wanted.flip(0) / 8)))
    wanted = torch.tensor(W2_OF_NIBBLE).float().repeat(2)
    assert torch.equal(mxfp4.decode_w2(codes, exponents), torch.stack((wanted, wanted.flip(0) / 8)))


def test_pack_puts_even_inputs_low_and_unpack_inverts_it() -> None:
    codes = torch.randint(0, 16, (7, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    packed = mxfp4.pack(codes)
    assert packed.dtype == torch.int8 and packed.shape == (7, 32)
    assert torch.equal(packed.view(torch.uint8)[:, 0], codes[:, 0] + 16 * codes[:, 1])
    assert torch.equal(mxfp4.unpack(packed), codes)


def test_encode_takes_the_nearest_value_and_keeps_the_sign_of_zero() -> None:
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    exponents = mxfp4.block_exponents(weight)
    codes = mxfp4.encode(weight, exponents)
    scaled = weight / torch.exp2(exponents).repeat_interleave(32, -1)
    levels = torch.tensor(FP4_OF_NIBBLE[:8])
    nearest = levels[(scaled.abs()[..., None] - levels).abs().argmin(-1)]
    assert torch.equal(mxfp4.decode_fp4(codes, torch.zeros_like(exponents)).abs(), nearest)
    assert torch.equal(codes >= 8, torch.signbit(weight))
    assert (codes == 8).any() and (codes == 0).any()


def test_encoding_what_was_decoded_changes_nothing() -> None:
    exponents = torch.tensor([[2.0], [-5.0]])
    codes = every_nibble()
    assert torch.equal(mxfp4.encode(mxfp4.decode_fp4(codes, exponents), exponents), codes)


@pytest.mark.parametrize("negative,expected", [(0, True), (4, True), (6, False), (50, False), (96, True), (100, True)])
def test_zeros_of_one_sign(negative: int, expected: bool) -> None:
    codes = torch.zeros(100, dtype=torch.uint8)
    codes[:negative] = 8
    assert mxfp4.zeros_of_one_sign(codes) == expected
    assert not mxfp4.zeros_of_one_sign(torch.full((4,), 3, dtype=torch.uint8))


def test_fp8_blocks_hold_their_largest_value_at_full_range() -> None:
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 2, 384)
    exponents = fp8.block_exponents(weight)
    assert exponents.shape == (2, 3)
    values = fp8.encode(weight, exponents)
    assert values.dtype == torch.float8_e4m3fn
    largest = values.float().abs().unflatten(0, (2, 128)).unflatten(-1, (3, 128)).amax((1, 3))
    assert bool(((largest > 200) & (largest <= 448)).all())
    back = fp8.decode(values, exponents)
    assert bool(((back - weight).abs() <= weight.abs() / 16 + torch.exp2(exponents).max() * 2**-9).all())
    assert torch.equal(fp8.quantise(weight), back)


def test_e8m0_keeps_exponents_byte_for_byte() -> None:
    exponents = torch.arange(-127.0, 128.0)
    scales = e8m0.to_e8m0(exponents)
    assert scales.dtype == torch.float8_e8m0fnu
    assert torch.equal(scales.view(torch.uint8), torch.arange(0, 255, dtype=torch.uint8))
    assert torch.equal(e8m0.from_e8m0(scales), exponents)
    assert torch.equal(scales.float()[1:], torch.exp2(exponents)[1:])


def test_a_cached_row_is_rounded_and_passes_its_gradient() -> None:
    row = torch.randn(3, 448, generator=torch.Generator().manual_seed(3), requires_grad=True)
    rounded = fp8.fake_quantise_row(row)
    assert not torch.equal(rounded, row)
    assert bool(((rounded - row).abs() <= row.abs() / 16 + 1e-3).all())
    rounded.sum().backward()
    assert torch.equal(row.grad, torch.ones_like(row))
