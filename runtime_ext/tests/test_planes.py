"""Packing and its inverse, and the layout that the kernels' header promises."""

import pytest
import torch
from generators import PLANE_SHAPES, mxfp4_codes, nibbles, scales

from moet_w2 import codebook, planes
from moet_w2.errors import UnsupportedError
from moet_w2.geometry import LayerGeometry


@pytest.mark.parametrize(("rows", "cols"), PLANE_SHAPES)
def test_codes_come_back(rows: int, cols: int) -> None:
    codes = codebook.to_two_bit(mxfp4_codes(rows, cols, seed=rows + cols))
    packed = planes.pack_codes(codes)
    assert packed.dtype == torch.uint8 and packed.numel() == rows * cols // 4
    back = planes.unpack_codes(packed, rows, cols)
    wrong = torch.nonzero(back != nibbles(codes))
    assert not len(wrong), f"first differences at (row, column) {wrong[:4].tolist()}"


@pytest.mark.parametrize(("rows", "cols"), PLANE_SHAPES)
def test_every_plane_byte_matters(rows: int, cols: int) -> None:
    packed = torch.randint(0, 256, (rows * cols // 4,), dtype=torch.uint8)
    codes = planes.unpack_codes(packed, rows, cols)
    again = planes.pack_codes(codes[:, 0::2] | codes[:, 1::2] << 4)
    assert torch.equal(again, packed)


@pytest.mark.parametrize(("rows", "cols"), PLANE_SHAPES)
def test_scales_come_back(rows: int, cols: int) -> None:
    source = scales(rows, cols, seed=7).view(torch.uint8)
    packed = planes.pack_scales(source)
    assert packed.numel() == rows * cols // 32
    assert torch.equal(planes.unpack_scales(packed, rows, cols), source)


def test_unpacking_takes_a_batch_of_experts() -> None:
    packed = torch.randint(0, 256, (3, 32 * 128 // 4), dtype=torch.uint8)
    batch = planes.unpack_codes(packed, 32, 128)
    assert batch.shape == (3, 32, 128)
    assert torch.equal(batch[2], planes.unpack_codes(packed[2], 32, 128))
    sc = torch.randint(0, 256, (3, 32 * 4), dtype=torch.uint8)
    assert torch.equal(planes.unpack_scales(sc, 32, 128)[1], planes.unpack_scales(sc[1], 32, 128))


def test_code_layout_is_the_documented_one() -> None:
    """Place one code at a time and look for it where the header's formula says, tile by tile."""
    rows, cols = 32, 256
    for row, col in [(0, 0), (1, 1), (8, 0), (7, 9), (15, 127), (3, 16), (20, 130), (31, 255), (9, 77)]:
        codes = torch.zeros(rows, cols, dtype=torch.uint8)
        codes[row, col] = 3
        packed = planes.pack_codes(codes[:, 0::2] | codes[:, 1::2] << 4)
        tile = (row // 16) * (cols // 128) + col // 128
        r, c = row % 16, col % 128
        g, half = r % 8, r // 8
        word, step, k = c // 32, c // 16 % 2, c % 16
        t, h, high = k % 8 // 2, k % 2, k // 8
        nibble = 4 * high + 2 * half + h
        bit = nibble * 4 + 2 * step
        byte = tile * 512 + (4 * g + t) * 16 + word * 4 + bit // 8
        assert packed[byte] == 3 << bit % 8, (row, col)
        assert packed.count_nonzero() == 1


def test_scale_layout_is_the_documented_one() -> None:
    rows, cols = 32, 256
    for row, block in [(0, 0), (8, 0), (3, 5), (31, 7), (17, 2)]:
        source = torch.zeros(rows, cols // 32, dtype=torch.uint8)
        source[row, block] = 200
        packed = planes.pack_scales(source)
        tile = (row // 16) * (cols // 128) + block // 4
        assert packed[tile * 64 + 8 * (row % 8) + 4 * (row % 16 // 8) + block % 4] == 200
        assert packed.count_nonzero() == 1


@pytest.mark.parametrize(("rows", "cols"), [(8, 128), (16, 64), (0, 128), (24, 128), (16, 192)])
def test_shapes_that_do_not_tile_are_refused(rows: int, cols: int) -> None:
    with pytest.raises(UnsupportedError, match=f"{rows} x {cols}"):
        planes.pack_codes(torch.zeros(rows, cols // 2, dtype=torch.uint8))


def test_a_layer_of_the_real_geometry_has_its_promised_bytes() -> None:
    geometry = LayerGeometry(experts=256, hidden=4096, width=2048)
    per_expert = 0
    for rows, cols in [(2048, 4096), (2048, 4096), (4096, 2048)]:
        per_expert += planes.pack_codes(torch.zeros(rows, cols // 2, dtype=torch.uint8)).nbytes
        per_expert += planes.pack_scales(torch.zeros(rows, cols // 32, dtype=torch.uint8)).nbytes
    assert 256 * per_expert == geometry.nbytes == 1_811_939_328
