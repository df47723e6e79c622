import pytest
import torch
from generators import mxfp4_codes, nibbles, scales

from moet_w2 import codebook

# DESIGN, section 4: magnitudes 0 .. 2 become 1, 3, 4 and 6 become 4, signs stay. Written out by hand.
EXPECTED = {
    0x0: 1, 0x1: 1, 0x2: 1, 0x3: 1, 0x4: 1, 0x5: 4, 0x6: 4, 0x7: 4,
    0x8: -1, 0x9: -1, 0xA: -1, 0xB: -1, 0xC: -1, 0xD: -4, 0xE: -4, 0xF: -4,
}  # fmt: skip


def values_of(packed: torch.Tensor) -> torch.Tensor:
    return codebook.two_bit_values(nibbles(packed))


@pytest.mark.parametrize("nibble", range(16))
def test_every_nibble_maps_as_the_contract_says(nibble: int) -> None:
    # Half of the row are zeros of both signs, so that zeros keep their sign bit.
    row = [nibble | nibble << 4] * 64 + [0x08, 0x80] * 32
    packed = torch.tensor([row], dtype=torch.uint8)
    assert values_of(codebook.to_two_bit(packed))[0, :128].tolist() == [EXPECTED[nibble]] * 128


def test_codes_stand_for_the_levels() -> None:
    assert codebook.two_bit_values(torch.arange(4)).tolist() == [-4.0, -1.0, 1.0, 4.0]
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        assert torch.tensor(codebook.LEVELS).to(dtype).float().tolist() == list(codebook.LEVELS)


@pytest.mark.parametrize("packed_zero", [0x00, 0x88])
def test_one_signed_zeros_become_a_checkerboard(packed_zero: int) -> None:
    packed = torch.full((6, 64), packed_zero, dtype=torch.uint8)
    packed[2, 3] = 0x5F  # column 6 is -6, column 7 is 3
    values = values_of(codebook.to_two_bit(packed))
    row, column = torch.meshgrid(torch.arange(6), torch.arange(128), indexing="ij")
    expected = 1.0 - 2.0 * ((row + column) % 2)
    expected[2, 6], expected[2, 7] = -4.0, 4.0
    assert torch.equal(values, expected)


@pytest.mark.parametrize(("negative_zeros", "rewritten"), [(49, True), (50, False), (950, False), (951, True)])
def test_zeros_are_rewritten_only_above_ninety_five_percent(negative_zeros: int, rewritten: bool) -> None:
    signs = torch.zeros(1024, dtype=torch.uint8)
    signs[:negative_zeros] = 8
    signs[1000:] = 7  # 24 codes that are no zeros, out of 1024
    packed = (signs[0::2] | signs[1::2] << 4).view(8, 64)
    values = values_of(codebook.to_two_bit(packed)).flatten()[:1000]
    by_sign = torch.ones(1000)
    by_sign[:negative_zeros] = -1.0
    assert torch.equal(values, by_sign) is not rewritten


def test_a_tensor_of_many_chunks_maps_like_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = mxfp4_codes(64, 256, seed=1)
    whole = codebook.to_two_bit(packed)
    monkeypatch.setattr(codebook, "_CHUNK_BYTES", 3 * 128)
    assert torch.equal(codebook.to_two_bit(packed), whole)
    assert set(nibbles(whole).unique().tolist()) == {0, 1, 2, 3}


def test_input_is_left_alone_and_the_result_is_deterministic() -> None:
    packed = torch.zeros(32, 64, dtype=torch.uint8)
    first = codebook.to_two_bit(packed)
    assert not packed.any()
    assert torch.equal(first, codebook.to_two_bit(packed))


def test_mxfp4_values_follow_the_format() -> None:
    codes = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2], dtype=torch.uint8)
    scale = torch.tensor([[128]], dtype=torch.uint8)  # 2 ** 1
    expected = [0, 1, 2, 3, 4, 6, 8, 12, -0.0, -1, -2, -3, -4, -6, -8, -12] * 2
    assert codebook.mxfp4_values(codes, scale).tolist() == [expected]


def test_scales_are_powers_of_two() -> None:
    assert codebook.scale_values(torch.tensor([0, 1, 127, 130, 254], dtype=torch.uint8)).tolist() == [
        2.0**-127, 2.0**-126, 1.0, 8.0, 2.0**127,
    ]  # fmt: skip
    assert codebook.scale_values(scales(4, 64, seed=0)).log2().frac().eq(0).all()
