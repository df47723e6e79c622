import pytest
import torch
from generators import TINY, device_layer, expert_tensors, filled_layer

from moet_w2 import codebook, planes
from moet_w2.errors import CheckpointError
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import Shard, W2Layer
from moet_w2.placement import Placement


def test_tensors_land_in_their_places_and_nowhere_else() -> None:
    layer, tensors = filled_layer(TINY)
    assert layer.complete and layer.missing() == []
    hidden, width = TINY.hidden, TINY.width
    for expert in range(TINY.experts):
        codes13 = planes.unpack_codes(layer.view("planes13")[expert], 2 * width, hidden)
        codes2 = planes.unpack_codes(layer.view("planes2")[expert], hidden, width)
        sc13 = planes.unpack_scales(layer.view("sc13")[expert], 2 * width, hidden)
        sc2 = planes.unpack_scales(layer.view("sc2")[expert], hidden, width)
        for projection, codes, sc in (
            ("w1", codes13[:width], sc13[:width]),
            ("w3", codes13[width:], sc13[width:]),
            ("w2", codes2, sc2),
        ):
            expected = codebook.to_two_bit(tensors[expert, projection, "weight"])
            assert torch.equal(codes[:, 0::2] | codes[:, 1::2] << 4, expected)
            assert torch.equal(sc, tensors[expert, projection, "scale"].view(torch.uint8))


def test_views_cover_the_storage_without_overlap() -> None:
    layer = device_layer(TINY)
    spans = sorted(
        (view.data_ptr(), view.data_ptr() + view.nbytes)
        for view in map(layer.view, ("planes13", "sc13", "planes2", "sc2"))
    )
    assert spans[0][0] == layer.storage.data_ptr()
    assert all(first[1] == second[0] for first, second in zip(spans, spans[1:], strict=False))
    assert spans[-1][1] == layer.storage.data_ptr() + layer.storage.nbytes


def test_order_of_arrival_does_not_matter() -> None:
    straight, tensors = filled_layer(TINY)
    backwards = device_layer(TINY)
    for (expert, projection, kind), tensor in reversed(tensors.items()):
        backwards.put(expert, projection, kind, tensor)
    assert torch.equal(straight.storage, backwards.storage)


@pytest.mark.parametrize("size", [2, 4])
def test_shards_put_together_hold_every_weight(size: int) -> None:
    whole = LayerGeometry(2, 256, 512)
    tensors = expert_tensors(whole)
    full = device_layer(whole)
    share = LayerGeometry(2, 256, 512 // size)
    ranks = [
        W2Layer(0, share, Placement.DEVICE, torch.zeros(share.nbytes, dtype=torch.uint8), shard=Shard(rank, size))
        for rank in range(size)
    ]
    for (expert, projection, kind), tensor in tensors.items():
        for layer in (full, *ranks):
            layer.put(expert, projection, kind, tensor)
    gate_up = [planes.unpack_codes(r.view("planes13")[1], 2 * share.width, 256) for r in ranks]
    merged = torch.cat([g[: share.width] for g in gate_up] + [g[share.width :] for g in gate_up])
    assert torch.equal(merged, planes.unpack_codes(full.view("planes13")[1], 1024, 256))
    down = torch.cat([planes.unpack_codes(r.view("planes2")[1], 256, share.width) for r in ranks], dim=1)
    assert torch.equal(down, planes.unpack_codes(full.view("planes2")[1], 256, 512))


def test_what_is_missing_is_named() -> None:
    layer, tensors = device_layer(TINY), expert_tensors(TINY)
    for place, tensor in tensors.items():
        if place != (2, "w3", "scale"):
            layer.put(*place, tensor)
    assert not layer.complete
    assert layer.missing() == ["experts.2.w3.scale"]


def test_a_second_arrival_is_refused() -> None:
    layer, tensors = filled_layer(TINY)
    with pytest.raises(CheckpointError, match=r"layers\.0\.ffn\.experts\.1\.w2\.weight: arrived twice"):
        layer.put(1, "w2", "weight", tensors[1, "w2", "weight"])


@pytest.mark.parametrize(
    ("expert", "projection", "kind", "change", "named"),
    [
        (0, "w1", "scale", lambda t: t.float(), "float32"),
        (0, "w1", "weight", lambda t: t.float(), "float32"),
        (0, "w1", "weight", lambda t: t[:, :64], r"\[128, 64\]"),
        (1, "w2", "scale", lambda t: t[:32], r"\[32, 4\]"),
        (4, "w1", "weight", lambda t: t, "experts 0..3"),
    ],
)
def test_a_wrong_tensor_is_refused_and_writes_nothing(expert, projection, kind, change, named) -> None:
    layer, tensors = device_layer(TINY), expert_tensors(TINY)
    before = layer.storage.clone()
    with pytest.raises(CheckpointError, match=named):
        layer.put(expert, projection, kind, change(tensors[min(expert, 3), projection, kind]))
    assert torch.equal(layer.storage, before) and len(layer.missing()) == 24


@pytest.mark.parametrize(("byte", "value"), [(192, r"2\*\*65"), (254, r"2\*\*127"), (255, "NaN")])
def test_a_scale_that_the_kernels_cannot_apply_is_refused(byte: int, value: str) -> None:
    layer, tensors = device_layer(TINY), expert_tensors(TINY)
    before = layer.storage.clone()
    broken = tensors[1, "w2", "scale"].view(torch.uint8)
    broken[17, 3] = byte
    named = rf"layers\.0\.ffn\.experts\.1\.w2\.scale: holds the scale byte {byte} \({value}\), at most 191 .* fetch"
    with pytest.raises(CheckpointError, match=named):
        layer.put(1, "w2", "scale", broken.view(torch.float8_e8m0fnu))
    assert torch.equal(layer.storage, before) and len(layer.missing()) == 24
    broken[17, 3] = 191
    layer.put(1, "w2", "scale", broken)
    assert len(layer.missing()) == 23


def test_codes_are_told_of_as_this_ranks_share() -> None:
    layer = W2Layer(0, TINY, Placement.DEVICE, torch.zeros(TINY.nbytes, dtype=torch.uint8), shard=Shard(1, 2))
    tensors = expert_tensors(LayerGeometry(TINY.experts, TINY.hidden, 2 * TINY.width))
    told = {}
    layer.on_codes = lambda expert, projection, codes: told.update({(expert, projection): codes})
    for projection in ("w1", "w2"):
        layer.put(3, projection, "weight", tensors[3, projection, "weight"])
    whole = {projection: tensors[3, projection, "weight"].view(torch.uint8) for projection in ("w1", "w2")}
    assert torch.equal(told[3, "w1"], whole["w1"][TINY.width :])
    assert torch.equal(told[3, "w2"], whole["w2"][:, TINY.width // 2 :])


def test_a_tensor_stays_until_the_next_one_so_that_they_share_a_segment() -> None:
    layer, tensors = device_layer(TINY), expert_tensors(TINY)
    last = None
    for (expert, projection, kind), tensor in tensors.items():
        layer.put(expert, projection, kind, tensor)
        last = tensor if kind == "weight" else last
        if not layer.complete:
            assert layer._last.data_ptr() == last.data_ptr()
    assert layer.complete and layer._last is None
