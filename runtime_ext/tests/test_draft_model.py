"""W2 for the DSpark draft through vLLM's own draft classes (:mod:`draft_process` says what is stubbed on a CPU)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("draft_process.py")
KEYS = [2, 3, 4]
"""Two target layers, then three draft layers."""


def run(folder: Path, load_format: str, **settings: str) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = kept | settings | {"HF_HUB_OFFLINE": "1", "VLLM_MOE_W2_MAPPED_LAYERS": "3"}
    command = [sys.executable, str(CHILD), str(folder / "model"), load_format]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, (done.stdout + done.stderr)[-4000:]
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("loaded")
    correction = {
        "VLLM_MOE_W2_STORE_DIR": str(folder / "store"),
        "VLLM_MOE_W2_DELTA_GB": "0.01",
        "VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS": "2,3,4",
    }
    return run(folder, "moet", **correction)


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("computed"), "moet_synthetic")


def test_the_draft_inherits_the_quantization_and_its_keys_follow_the_targets(loaded) -> None:
    assert loaded["quantization"] == "moet_w2"
    assert loaded["layers"] == {str(key): "checkpoint" for key in KEYS}
    assert [f".layers.{key}." in name for key, name in zip(KEYS, loaded["names"], strict=True)] == [True] * 3


def test_draft_layers_are_mapped_by_key(loaded, computed) -> None:
    assert loaded["mapped"] == computed["mapped"] == [3]
    assert loaded["audit"]["allocated_mapped_layers"] == [3]
    assert loaded["audit"]["draft_layers"] == 3


def test_the_draft_pass_reads_the_drafts_tensors_and_nothing_else(loaded) -> None:
    """Planes are those of ``mtp.0`` to ``mtp.2``, bit for bit, and no byte of the target is read again."""
    assert loaded["complete"]
    assert loaded["bytes_read"] == loaded["bytes_of_drafts"]
    assert loaded["norms"] == [5.0, 7.0]


def test_nothing_of_ours_takes_the_default_device(loaded, computed) -> None:
    """A process's runtime, its correction and a layer, made while another device than the CPU is the default."""
    assert loaded["astray"] == computed["astray"] == []


def test_excluded_draft_layers_write_no_correction_rows(loaded) -> None:
    assert loaded["codes_wanted"] == []
    assert loaded["audit"]["uncorrected_layers"] == KEYS


def test_the_draft_has_a_mask_of_padded_rows(loaded) -> None:
    assert loaded["draft_mask"] == [1024]


def test_a_computed_draft_needs_no_tensor(computed) -> None:
    assert computed["complete"] and computed["layers"] == {str(key): "synthetic" for key in [0, 1, *KEYS]}
    assert computed["norms"] == [1.0, 1.0]


def test_computed_matrices_keep_activations_their_size(computed) -> None:
    dense, target = computed["dense"], computed["target"]

    def near(found: list[float], wanted: float) -> bool:
        low, high = found
        return 0.6 * wanted < low <= high < 1.6 * wanted

    layer = "model.layers.1"
    assert near(target["model.embed_tokens.weight"], 1.0)
    assert near(dense[f"{layer}.attn.wq_b.weight"], 128**-0.5)
    assert near(dense[f"{layer}.ffn.shared_experts.gate_up_proj.weight"], 256**-0.5)
    assert near(dense[f"{layer}.attn.wo_b.weight"], 256**-0.5 / 32)
    assert near(dense[f"{layer}.ffn.shared_experts.down_proj.weight"], 256**-0.5 / 32)
    assert near(dense[f"{layer}.hc_attn_fn"], 1024**-0.5)
    assert dense[f"{layer}.hc_attn_scale"] == dense[f"{layer}.attn.kv_norm.weight"] == [1.0, 1.0]
    assert dense[f"{layer}.hc_attn_base"] == dense[f"{layer}.attn.attn_sink"] == [0.0, 0.0]


def test_few_rows_of_the_head_lead(computed) -> None:
    low, high = computed["target"]["lm_head.weight"]
    assert low > 0.8 * 256**-0.5 and high > 3 * low


def test_a_computed_target_has_every_parameter_and_is_finished(computed) -> None:
    """vLLM's CUDA classes of the target: layers of both kinds of compression, the indexer, hash routing."""
    target = computed["target"]
    assert computed["finished"]
    assert all(0 <= low <= high < 100 for low, high in target.values())  # a NaN fails both
    zeros = {name.rpartition(".")[2] for name, (_, high) in target.items() if high == 0}
    assert zeros <= {"attn_sink", "ape", "hc_attn_base", "hc_ffn_base", "hc_head_base", "e_score_correction_bias"}
    assert any(".indexer." in name for name in target) and any(name.endswith("tid2eid") for name in target)


def test_two_ranks_share_out_the_computed_model_of_one(computed) -> None:
    """Every parameter of target and draft, bit for bit: whole on both ranks, or the parts of both joined."""
    shares = computed["shares"]
    assert shares["wrong"] == []
    ends = {name.split(".layers.1.")[1] for name in shares["shared out"] if name.startswith("draft model.layers.1.")}
    split = ("attn.wq_b", "attn.wo_a", "attn.wo_b", "ffn.shared_experts.gate_up_proj", "ffn.shared_experts.down_proj")
    assert {f"{name}.weight" for name in split} <= ends
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(shares["shared out"])
    assert {"model.layers.0.attn.fused_wqa_wkv.weight", "draft model.main_proj.weight"} <= set(shares["whole"])
