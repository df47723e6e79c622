import json
from pathlib import Path

import pytest
import torch
from generators import TINY, write_checkpoint, write_shards
from safetensors.torch import load_file

from moet_w2 import checkpoint
from moet_w2.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def edit_tensors(folder: Path, change) -> None:
    tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(str(shard))
    change(tensors)
    write_shards(folder, tensors)


def refuse(folder: Path, named: str) -> None:
    with pytest.raises(CheckpointError, match=named) as caught:
        checkpoint.inspect(folder)
    assert "\n" not in str(caught.value)


def test_a_whole_checkpoint_passes(folder: Path) -> None:
    report = checkpoint.inspect(folder)
    assert (report.target_layers, report.draft_layers, report.geometry) == (2, 0, TINY)
    assert report.tensors == 2 * TINY.experts * 6
    assert report.nbytes == 2 * TINY.experts * 3 * 256 * 128 * (1 / 2 + 1 / 32)


def test_a_config_alone_describes_made_up_weights(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), folder / checkpoint.INDEX]:
        file.unlink()
    report = checkpoint.describe(folder)
    assert (report.target_layers, report.geometry) == (2, TINY)
    assert (report.draft_layers, report.tensors, report.nbytes) == (0, 0, 0)
    edit_config(folder, expert_dtype="fp8")
    with pytest.raises(CheckpointError, match="not MXFP4"):
        checkpoint.describe(folder)


def test_draft_layers_are_counted_and_checked(folder: Path) -> None:
    def add_draft(tensors):
        tensors |= {name.replace("layers.0", "mtp.0"): t.clone() for name, t in tensors.items() if "layers.0" in name}

    edit_tensors(folder, add_draft)
    assert checkpoint.inspect(folder).draft_layers == 1
    edit_tensors(folder, lambda tensors: tensors.pop("mtp.0.ffn.experts.3.w1.scale"))
    refuse(folder, r"mtp\.0\.ffn\.experts\.3\.w1\.scale: missing")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "nowhere does not exist")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00002-of-00002.safetensors"])
def test_a_file_that_is_not_there(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refuse(folder, f"{name}: this (file|shard) is missing")


def test_broken_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    refuse(folder, "config.json: cannot be read as JSON")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'.*: set MODEL_PATH"),
        ({"model_type": None}, "config.json has no model_type; moet_w2 serves deepseek_v4"),
        ({"expert_dtype": "fp8"}, "not MXFP4 .*expert_dtype 'fp8'"),
        ({"quantization_config": None}, "not MXFP4 .*quant_method None"),
        ({"quantization_config": ["fp8"]}, "has a list as quantization_config"),
        ({"quantization_config": {"quant_method": "awq"}}, "not MXFP4 .*quant_method 'awq'"),
        ({"quantization_config": {"quant_method": "fp8", "moe_quant_algo": "NVFP4"}}, "moe_quant_algo 'NVFP4'"),
        ({"n_routed_experts": 0}, "n_routed_experts=0"),
        ({"hidden_size": "256"}, "hidden_size='256'"),
    ],
)
def test_another_model_or_other_experts(folder: Path, changes: dict, named: str) -> None:
    edit_config(folder, **changes)
    refuse(folder, named)


@pytest.mark.parametrize("cut", [1, 4096])
def test_a_truncated_shard(folder: Path, cut: int) -> None:
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-cut])
    refuse(folder, "00001-of-00002.safetensors: truncated")


@pytest.mark.parametrize("length", [0, 4, 100])
def test_a_shard_cut_inside_its_header(folder: Path, length: int) -> None:
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:length])
    refuse(folder, "too few for its header")


def test_a_shard_with_bytes_after_its_end(folder: Path) -> None:
    with (folder / "model-00002-of-00002.safetensors").open("ab") as file:
        file.write(b"x")
    refuse(folder, "too long")


def test_a_missing_expert_tensor(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop("layers.1.ffn.experts.2.w2.weight"))
    refuse(folder, r"layers\.1\.ffn\.experts\.2\.w2\.weight: missing from the checkpoint \(1 expert")


@pytest.mark.parametrize(
    "extra", ["layers.0.ffn.experts.4.w1.weight", "layers.2.ffn.experts.0.w1.weight", "layers.0.ffn.experts.0.w1.bias"]
)
def test_an_extra_expert_tensor(folder: Path, extra: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({extra: torch.zeros(128, 128, dtype=torch.int8)}))
    refuse(folder, f"{extra}: the checkpoint's config.json has no such expert")


@pytest.mark.parametrize(
    ("name", "tensor", "found"),
    [
        ("layers.0.ffn.experts.1.w3.scale", torch.ones(128, 8), r"F32 \[128, 8\] is not an MXFP4 scale"),
        ("layers.0.ffn.experts.1.w3.weight", torch.zeros(128, 256, dtype=torch.bfloat16), r"BF16 \[128, 256\]"),
        ("layers.0.ffn.experts.1.w2.weight", torch.zeros(128, 128, dtype=torch.int8), r"I8 \[128, 128\]"),
    ],
)
def test_a_wrong_dtype_or_shape(folder: Path, name: str, tensor: torch.Tensor, found: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: tensor}))
    refuse(folder, f"{name}: {found}")


def test_an_index_that_disagrees_with_its_shards(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = "layers.0.ffn.experts.0.w1.weight"
    index["weight_map"][name] = "model-00002-of-00002.safetensors"
    path.write_text(json.dumps(index))
    refuse(folder, f"{name}: the index places it in model-00002")
    del index["weight_map"][name]
    path.write_text(json.dumps(index))
    refuse(folder, f"{name}: held by .* but not named")


def test_an_index_that_leaves_the_folder(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["layers.0.ffn.experts.0.w1.weight"] = "../model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    refuse(folder, "leaves the checkpoint's folder")


def test_an_index_that_names_no_files_is_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}')
    with pytest.raises(CheckpointError, match="places a in 5, which names no file"):
        checkpoint.inspect(folder)
