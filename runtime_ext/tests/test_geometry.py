import pytest

from moet_w2.errors import UnsupportedError
from moet_w2.geometry import LayerGeometry

REAL = LayerGeometry(experts=256, hidden=4096, width=2048)


def test_real_layer_matches_the_contract() -> None:
    parts = REAL.parts
    assert [(p.name, p.row_bytes, p.offset, p.nbytes) for p in parts.values()] == [
        ("planes13", 4_194_304, 0, 1_073_741_824),
        ("sc13", 524_288, 1_073_741_824, 134_217_728),
        ("planes2", 2_097_152, 1_207_959_552, 536_870_912),
        ("sc2", 262_144, 1_744_830_464, 67_108_864),
    ]
    assert REAL.nbytes == 1_811_939_328
    assert [n * REAL.nbytes for n in (3, 4, 5)] == [5_435_817_984, 7_247_757_312, 9_059_696_640]
    assert 46 * REAL.nbytes == 77.625 * 2**30


def test_correction_row_is_twelve_mebibytes() -> None:
    assert REAL.correction_row_bytes == 12 * 2**20
    assert 512 * REAL.correction_row_bytes == 6 * 2**30


def test_an_expert_is_what_it_has_in_all_parts() -> None:
    rows = {name: part.row_bytes for name, part in REAL.parts.items()}
    assert REAL.expert_bytes == sum(rows.values()) and REAL.scale_row_bytes == rows["sc13"] + rows["sc2"]


@pytest.mark.parametrize("size", [2, 4])
def test_tensor_parallel_shares_add_up(size: int) -> None:
    assert size * LayerGeometry(256, 4096, 2048 // size).nbytes == REAL.nbytes


@pytest.mark.parametrize(
    ("experts", "hidden", "width", "named"),
    [(0, 4096, 2048, "expert"), (8, 4000, 2048, "4000"), (8, 4096, 64, "64"), (8, 0, 128, "hidden size")],
)
def test_impossible_shapes_are_refused(experts: int, hidden: int, width: int, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        LayerGeometry(experts, hidden, width)
