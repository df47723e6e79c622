"""Weights that are computed: what they are, and that correction rows refine the very planes."""

import math
from pathlib import Path

import pytest
import torch
from generators import TINY, device_layer

from moet_w2 import codebook, planes, reference, synthetic
from moet_w2.correction import codes
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import PROJECTIONS, Shard

CPU = torch.device("cpu")
EXPERTS = synthetic.Experts(seed=7, geometry=TINY, device=CPU)


def split_mix(seed: int, count: int) -> list[int]:
    """SplitMix64 as its authors give it, in plain integers."""
    word, out, mask = seed, [], (1 << 64) - 1
    for _ in range(count):
        word = word + 0x9E3779B97F4A7C15 & mask
        z = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        out.append(z ^ z >> 31)
    return out


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) + 5, (1 << 64) - 1])
def test_words_are_splitmix64(seed) -> None:
    found = synthetic.random_words(seed, 50, CPU).tolist()
    assert [word % (1 << 64) for word in found] == split_mix(seed, 50)


def test_the_published_first_output() -> None:
    """Of seed 1234567, as the generator's reference implementation prints it."""
    assert synthetic.random_words(1234567, 2, CPU).tolist() == [6457827717110365317, 3203168211198807973]


def test_tensors_depend_on_everything_that_names_them() -> None:
    def drawn(seed=7, layer=1, expert=2, projection="w1") -> bytes:
        made = synthetic.Experts(seed, TINY, CPU).codes(layer, expert, projection)
        return made.numpy().tobytes()

    first = drawn()
    assert first == drawn()
    others = [drawn(seed=8), drawn(layer=2), drawn(expert=3), drawn(projection="w3"), drawn(layer=0, expert=1)]
    assert len({first, *others}) == 1 + len(others)


def test_codes_are_even_and_scales_follow_the_fan_in() -> None:
    for projection in PROJECTIONS:
        drawn = EXPERTS.codes(0, 0, projection)
        nibbles = torch.bincount(torch.cat([drawn & 15, drawn >> 4]).flatten().int(), minlength=16)
        assert (nibbles - drawn.numel() / 8).abs().max() < 6 * math.sqrt(drawn.numel() / 8)
        scales = EXPERTS.scales(0, 0, projection)
        lowest = synthetic.lowest_scale(projection, scales.shape[1] * 32)
        assert scales.unique().tolist() == [lowest, lowest + 1, lowest + 2]


@pytest.fixture(scope="module")
def filled():
    layer = device_layer(TINY, key=3)
    EXPERTS.fill(layer)
    return layer


def test_planes_are_what_the_quantiser_makes_of_the_codes(filled) -> None:
    assert filled.complete and filled.origin == synthetic.ORIGIN
    for expert in range(TINY.experts):
        whole = codebook.to_two_bit(EXPERTS.codes(3, expert, "w2"))
        assert torch.equal(filled.view("planes2")[expert], planes.pack_codes(whole))
        assert torch.equal(filled.view("sc2")[expert], planes.pack_scales(EXPERTS.scales(3, expert, "w2")))


def test_rows_refine_the_planes(filled, tmp_path: Path) -> None:
    """Quantising the codes of a row gives the layer's planes."""
    rows = synthetic.Rows(tmp_path, synthetic.key(EXPERTS, Shard(), 5), EXPERTS)
    row = torch.empty(rows.row_bytes, dtype=torch.uint8)
    slices = codes.row_slices(TINY)
    for expert in range(TINY.experts):
        rows.read(3, expert, row)
        natural = codes.unpack(row[slices["w2"]], TINY.hidden, TINY.width).view(TINY.hidden, TINY.width // 2)
        assert torch.equal(planes.pack_codes(codebook.to_two_bit(natural)), filled.view("planes2")[expert])
        gate = codes.unpack(row[slices["w1"]], TINY.width, TINY.hidden).view(TINY.width, TINY.hidden // 2)
        half = filled.view("planes13")[expert].numel() // 2
        assert torch.equal(planes.pack_codes(codebook.to_two_bit(gate)), filled.view("planes13")[expert][:half])
    rows.read(2, 0, row)
    other = codes.unpack(row[slices["w2"]], TINY.hidden, TINY.width).view(TINY.hidden, TINY.width // 2)
    assert not torch.equal(planes.pack_codes(codebook.to_two_bit(other)), filled.view("planes2")[0])


def test_ranks_hold_shares_of_one_model(tmp_path: Path) -> None:
    whole = LayerGeometry(2, 256, 256)
    experts = synthetic.Experts(7, whole, CPU)
    full, share = device_layer(whole), LayerGeometry(2, 256, 128)
    experts.fill(full)
    for rank in (0, 1):
        layer = device_layer(share)
        layer.shard = Shard(rank, 2)
        experts.fill(layer)
        both = planes.unpack_codes(full.view("planes2")[1], 256, 256)
        assert torch.equal(planes.unpack_codes(layer.view("planes2")[1], 256, 128), both.chunk(2, dim=1)[rank])
        rows = synthetic.Rows(tmp_path, synthetic.key(experts, Shard(rank, 2), 1), experts)
        row = torch.empty(rows.row_bytes, dtype=torch.uint8)
        rows.read(0, 1, row)
        part = codes.unpack(row[codes.row_slices(share)["w2"]], 256, 128).view(256, 64)
        assert torch.equal(part, experts.codes(0, 1, "w2").chunk(2, dim=1)[rank])


def test_keys_tell_seeds_apart() -> None:
    other = synthetic.Experts(8, TINY, CPU)
    assert synthetic.key(EXPERTS, Shard(), 5).digest != synthetic.key(other, Shard(), 5).digest


@pytest.mark.parametrize("geometry", [TINY, LayerGeometry(2, 1024, 512)])
def test_a_layer_adds_less_than_it_is_given(geometry) -> None:
    """Unit inputs come out an eighth as large, so that depth does not let hidden states grow."""
    layer = device_layer(geometry)
    synthetic.Experts(1, geometry, CPU).fill(layer)
    x = torch.randn(16, geometry.hidden, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(32).view(16, 2) % geometry.experts
    out = reference.moe(layer, x, torch.full((16, 2), 0.75), ids, 10.0)
    assert 0.02 < float(out.float().pow(2).mean().sqrt()) < 0.6
