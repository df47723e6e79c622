"""Packing and its inverse, and the layout that the kernels' header promises."""

import layout_oracle
import pytest
import torch
from generators import PLANE_SHAPES, mxfp4_codes, nibbles, scales
from hypothesis import given, settings
from hypothesis import strategies as st

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


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda n: (16 * n[0], 128 * n[1]))


def random_bytes(rows: int, cols: int, below: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, below, (rows, cols), dtype=torch.uint8, generator=generator)


def test_the_header_draws_every_bit_of_a_half_once() -> None:
    drawn = layout_oracle.picture()
    assert sorted(bit for bits in drawn.values() for bit in bits.values()) == list(range(16))
    # What the kernels' arithmetic rests on: the magnitude lies 7 below the sign once bytes may be swapped.
    assert all((drawn["sign"][key] - bit) % 16 == 7 for key, bit in drawn["magn."].items())


@settings(max_examples=8, deadline=None)
@given(shapes, st.integers(0, 2**32))
def test_code_layout_is_the_headers(shape: tuple[int, int], seed: int) -> None:
    codes = random_bytes(*shape, 4, seed)
    packed = planes.pack_codes(layout_oracle.pack_nibbles(codes))
    wrong = torch.nonzero(packed != layout_oracle.pack_planes(codes)).flatten()
    assert not len(wrong), f"first wrong bytes {wrong[:8].tolist()}"
    assert torch.equal(planes.unpack_codes(packed, *shape), codes)


def test_the_oracle_tells_layouts_apart() -> None:
    codes = random_bytes(16, 128, 4, 0)
    swapped = codes.clone()
    swapped[[0, 8]] = codes[[8, 0]]
    assert not torch.equal(planes.pack_codes(layout_oracle.pack_nibbles(swapped)), layout_oracle.pack_planes(codes))


def test_patterns_stand_for_the_codes_of_their_columns() -> None:
    codes = random_bytes(64, 512, 4, 1)
    patterns = planes.row_patterns(planes.pack_codes(layout_oracle.pack_nibbles(codes)), 64, 512)
    assert patterns.shape == (64, 128) and 0 <= int(patterns.min()) <= int(patterns.max()) < planes.PATTERNS
    assert len(patterns.unique()) == 512  # every pattern of either kind of row
    found = planes.pattern_codes(codes.device)[patterns.long()]
    assert torch.equal(found, codes[:, planes.pattern_columns(512)])


def test_many_chunks_pack_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = layout_oracle.pack_nibbles(random_bytes(112, 256, 4, 2))
    whole = planes.pack_codes(codes)
    monkeypatch.setattr(planes, "_CHUNK_BYTES", 2 * 8 * 128)  # three chunks of two tile rows, then one of one
    assert torch.equal(planes.pack_codes(codes), whole)


def test_packing_writes_its_destination_and_leaves_its_source() -> None:
    codes = layout_oracle.pack_nibbles(random_bytes(32, 128, 4, 3))
    before = codes.clone()
    room = torch.full((3 * 1024,), 0xA5, dtype=torch.uint8)
    assert planes.pack_codes(codes, out=room[1024:2048]).data_ptr() == room.data_ptr() + 1024
    assert torch.equal(room[1024:2048], planes.pack_codes(codes)) and torch.equal(codes, before)
    assert bool((room[:1024] == 0xA5).all()) and bool((room[2048:] == 0xA5).all())


@settings(max_examples=10, deadline=None)
@given(shapes, st.integers(0, 2**32))
def test_scale_layout_is_the_headers(shape: tuple[int, int], seed: int) -> None:
    source = random_bytes(shape[0], shape[1] // 32, 256, seed)
    assert torch.equal(planes.pack_scales(source), layout_oracle.pack_scales(source))


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
