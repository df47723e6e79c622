"""FP4 codes of a correction row: packing, its inverse, the header's layout, and the values of patterns."""

import layout_oracle
import pytest
import torch
from generators import PLANE_SHAPES, mxfp4_codes, nibbles
from hypothesis import given, settings
from hypothesis import strategies as st

from moet_w2 import codebook, planes
from moet_w2.correction import codes
from moet_w2.errors import UnsupportedError
from moet_w2.geometry import LayerGeometry


@pytest.mark.parametrize(("rows", "cols"), PLANE_SHAPES[:4])
def test_codes_come_back(rows: int, cols: int) -> None:
    source = mxfp4_codes(rows, cols, seed=3).view(torch.uint8)
    packed = codes.pack(source)
    assert packed.numel() == rows * cols // 2
    assert torch.equal(codes.unpack(packed, rows, cols), source)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(0, 2**32))
def test_code_layout_is_the_headers(tiles_n: int, tiles_k: int, seed: int) -> None:
    source = mxfp4_codes(16 * tiles_n, 128 * tiles_k, seed).view(torch.uint8)
    packed = codes.pack(source)
    wrong = torch.nonzero(packed != layout_oracle.pack_fp4(nibbles(source))).flatten()
    assert not len(wrong), f"first wrong bytes {wrong[:8].tolist()}"


def test_the_oracle_tells_layouts_apart() -> None:
    source = mxfp4_codes(16, 128, seed=0).view(torch.uint8)
    assert not torch.equal(codes.pack(source.flip(0)), layout_oracle.pack_fp4(nibbles(source)))


def test_many_chunks_pack_like_one_and_leave_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    source = mxfp4_codes(112, 256, seed=1).view(torch.uint8)
    before, whole = source.clone(), codes.pack(source)
    monkeypatch.setattr(codes, "_CHUNK_BYTES", 2 * 8 * 128)  # three chunks of two tile rows, then one of one
    assert torch.equal(codes.pack(source), whole) and torch.equal(source, before)


def test_unpacking_takes_a_batch_of_experts() -> None:
    packed = torch.randint(0, 256, (3, 32 * 128 // 2), dtype=torch.uint8)
    batch = codes.unpack(packed, 32, 128)
    assert batch.shape == (3, 32, 64) and torch.equal(batch[2], codes.unpack(packed[2], 32, 128))


def test_pattern_values_are_in_the_order_of_the_planes() -> None:
    source = mxfp4_codes(32, 256, seed=2).view(torch.uint8)
    values = codes.pattern_values(codes.pack(source), 32, 256)
    assert torch.equal(values, codebook.e2m1_values(nibbles(source))[:, planes.pattern_columns(256).flatten()])


def test_shapes_that_do_not_tile_as_planes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="16 x 192"):
        codes.pack(torch.zeros(16, 96, dtype=torch.uint8))


def test_a_row_of_the_real_geometry_is_twelve_mebibytes() -> None:
    parts = codes.row_slices(LayerGeometry(256, 4096, 2048))
    assert parts["w2"].stop == 12 * 2**20 and [p.start for p in parts.values()] == [0, 4 << 20, 8 << 20]
