"""The list of an official checkpoint's tensors, against the demo checkpoint's headers and vLLM's modules."""

import json
import math
import struct
from pathlib import Path

import pytest

from moet_w2 import official

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo" / "checkpoint"
FLASH = json.loads((ROOT / "bench" / "models" / "deepseek-v4-flash" / "config.json").read_text())
BYTES = {"BF16": 2, "F32": 4, "I32": 4, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def headers(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}
    for shard in folder.glob("*.safetensors"):
        with shard.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        found |= {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
    return found


def listed(tensors) -> dict[str, tuple[str, tuple[int, ...]]]:
    tensors = list(tensors)
    found = {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors}
    assert len(found) == len(tensors)
    return found


def nbytes(tensors) -> int:
    return sum(BYTES[tensor.dtype] * math.prod(tensor.shape) for tensor in tensors)


def test_the_list_is_the_demo_checkpoints() -> None:
    """Every name, dtype and shape, and no other."""
    config = json.loads((DEMO / "config.json").read_text())
    assert listed(official.target(config)) == headers(DEMO)
    named = json.loads((DEMO / "model.safetensors.index.json").read_text())["weight_map"]
    assert named.keys() == listed(official.target(config)).keys()


def test_dense_tensors_of_flash_fill_vllms_modules() -> None:
    """Sums over named_parameters() of vLLM's modules of this geometry, as test_planner_memory.py has them."""
    head = 2 * FLASH["vocab_size"] * FLASH["hidden_size"]
    assert nbytes(official.target(FLASH, experts=False)) == 7_777_589_468 + head
    # vLLM keeps the key-value projections of all draft layers a second time, side by side.
    rows, columns = FLASH["n_mtp_layers"] * FLASH["head_dim"], FLASH["hidden_size"]
    again = rows * columns + rows // 128 * columns // 128
    assert nbytes(official.draft(FLASH, experts=False)) + again == 601_482_652


def test_experts_are_most_of_it_and_can_be_left_out() -> None:
    assert sum(".experts." in tensor.name for tensor in official.target(FLASH)) == 43 * 256 * 6
    assert not any(".experts." in tensor.name for tensor in official.target(FLASH, experts=False))
    layer = nbytes(tensor for tensor in official.draft(FLASH) if tensor.name.startswith("mtp.1.ffn.experts."))
    assert layer == 256 * 3 * 2048 * 4096 * 17 // 32


@pytest.mark.parametrize("stages", [None, 2])
def test_a_draft_has_three_layers_unless_its_config_says_otherwise(stages) -> None:
    names = listed(official.draft(FLASH | {"n_mtp_layers": stages}, experts=False))
    last = (stages or 3) - 1
    assert f"mtp.{last}.markov_head.markov_w2.weight" in names and f"mtp.{last}.norm.weight" in names
    assert not any(name.startswith(f"mtp.{last + 1}.") for name in names)
    assert not any("compressor" in name or "tid2eid" in name for name in names)


def test_fan_in_is_the_weights_for_its_scale_too() -> None:
    found = {tensor.name: tensor for tensor in official.target(FLASH, experts=False)}
    assert found["layers.0.attn.wo_a.scale"].fan_in == found["layers.0.attn.wo_a.weight"].fan_in == 4096
    assert found["layers.0.ffn.shared_experts.w2.scale"].shape == (32, 16)
    assert found["norm.weight"].fan_in == found["layers.2.attn.compressor.ape"].fan_in == 0
