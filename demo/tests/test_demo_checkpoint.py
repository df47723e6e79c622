"""The committed checkpoint is complete, in the official layout, small enough, and what its codes say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from demo.make import checkpoint, mxfp4
from demo.make.geometry import EXPERT_WIDTH, EXPERTS, HIDDEN, LAYERS, TOP_K, VOCABULARY, official_config
from demo.make.names import entries, scale_name

LIMIT = 25_000_000
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def tensors(checkpoint_dir: Path) -> Tensors:
    """Every tensor of the checkpoint."""
    return checkpoint.read(checkpoint_dir)


def problems(tensors: Tensors) -> list[str]:
    """What departs from the official layout: names, types, shapes of scales."""
    wanted: set[str] = set()
    found = []
    types = {"fp4": torch.int8, "fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16, "f32": torch.float32}
    types["i32"] = torch.int32
    for entry in entries():
        wanted.add(entry.official)
        if entry.storage in ("fp4", "fp8"):
            wanted.add(scale_name(entry.official))
        tensor = tensors.get(entry.official)
        if tensor is None:
            found.append(f"{entry.official} is missing")
            continue
        if tensor.dtype != types[entry.storage]:
            found.append(f"{entry.official} is {tensor.dtype}")
        if entry.storage in ("fp4", "fp8"):
            rows, columns = tensor.shape
            shape = (rows, columns // 16) if entry.storage == "fp4" else (-(-rows // 128), -(-columns // 128))
            scale = tensors.get(scale_name(entry.official))
            if scale is None or scale.dtype != torch.float8_e8m0fnu or tuple(scale.shape) != shape:
                found.append(f"{scale_name(entry.official)} is not {shape} of float8_e8m0fnu")
    return found + [f"{name} is unknown" for name in tensors.keys() - wanted]


def test_layout_is_complete(tensors: Tensors) -> None:
    assert problems(tensors) == []
    assert len(tensors) > 2 * 3 * EXPERTS * LAYERS


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.pop("layers.2.ffn.experts.63.w2.weight"),
        lambda t: t.pop("layers.0.attn.wkv.scale"),
        lambda t: t.update({"layers.1.ffn.experts.0.w1.scale": torch.zeros(EXPERT_WIDTH, HIDDEN // 32)}),
        lambda t: t.update({"layers.1.ffn.experts.64.w1.weight": torch.zeros(1)}),
        lambda t: t.update({"norm.weight": torch.zeros(HIDDEN)}),
    ],
)
def test_damage_is_noticed(tensors: Tensors, damage) -> None:
    broken = dict(tensors)
    damage(broken)
    assert len(problems(broken)) == 1


def test_shapes_of_experts(tensors: Tensors) -> None:
    assert tensors["layers.3.ffn.experts.5.w1.weight"].shape == (EXPERT_WIDTH, HIDDEN // 2)
    assert tensors["layers.3.ffn.experts.5.w3.scale"].shape == (EXPERT_WIDTH, HIDDEN // 32)
    assert tensors["layers.3.ffn.experts.5.w2.weight"].shape == (HIDDEN, EXPERT_WIDTH // 2)


def test_hash_table_names_distinct_experts(tensors: Tensors) -> None:
    table = tensors["layers.0.ffn.gate.tid2eid"]
    assert table.shape == (VOCABULARY, TOP_K)
    assert int(table.min()) >= 0 and int(table.max()) < EXPERTS
    assert all(len(set(row)) == TOP_K for row in table.tolist())


def test_index_and_config(checkpoint_dir: Path, tensors: Tensors) -> None:
    index = json.loads((checkpoint_dir / checkpoint.INDEX).read_text())
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert {p.name for p in checkpoint_dir.glob("*.safetensors")} == set(index["weight_map"].values())
    assert json.loads((checkpoint_dir / "config.json").read_text()) == official_config()


def test_size(checkpoint_dir: Path) -> None:
    folder = checkpoint_dir.parent
    files = [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert 20_000_000 < sum(p.stat().st_size for p in files) <= LIMIT


def test_no_expert_leaves_the_sign_of_its_zeros_to_the_reader(tensors: Tensors) -> None:
    for entry in entries():
        if entry.storage == "fp4":
            assert not mxfp4.zeros_of_one_sign(mxfp4.unpack(tensors[entry.official])), entry.official


def test_all_values_are_finite(tensors: Tensors) -> None:
    for name, weight in checkpoint.from_official(tensors, two_bit=True).items():
        assert bool(torch.isfinite(weight.float()).all()), name
