"""Bad input that reaches the engine past the launcher: `vllm serve` itself ends before it claims to be ready.

Each case starts a real engine and costs tens of seconds, so there is one for each place that can refuse: the plugin
in the API process, the plan of the layers in the worker, and the look at the checkpoint before it is loaded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import stop_session
from safetensors.torch import load_file, save_file
from server_support import RECIPE, REPOSITORY, clean_environment

from moet_w2 import checkpoint, command, recipe
from validation.local import engine_lock, free_port

pytestmark = pytest.mark.server
LIMIT_SECONDS = 180


def serve_past_the_launcher(tmp_path: Path, model: Path, **variables: str) -> str:
    """Run the recipe's own command with other variables until it ends; returns its log.

    /health is asked all the while and must never answer.
    """
    port = free_port()
    loaded = recipe.load(RECIPE)
    overrides = command.Overrides(model_path=model, port=port, audit_path=tmp_path / "audit.json")
    rendered = command.render(loaded, overrides, program=str(REPOSITORY / ".native" / "venv-cpu" / "bin" / "vllm"))
    environment = clean_environment() | rendered.env | variables
    log = tmp_path / "server.log"
    with engine_lock(), log.open("w") as file:
        process = subprocess.Popen(
            rendered.argv, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            deadline = time.monotonic() + LIMIT_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                assert not _healthy(port), "the server claims to be ready"
                time.sleep(0.5)
            assert process.poll() not in (None, 0), f"ended with {process.poll()}"
            assert stop_session.ends(process.pid, 10), "processes are left behind"
        finally:
            stop_session.stop(process.pid, 5)
            process.kill()
            process.wait()
    assert not (tmp_path / "audit.json").exists()
    return log.read_text()


def test_an_unknown_setting_ends_the_start(tmp_path, demo_checkpoint):
    log = serve_past_the_launcher(tmp_path, demo_checkpoint, VLLM_MOE_W2_MAPED_LAYERS="2")
    assert "VLLM_MOE_W2_MAPED_LAYERS='2' is not a setting of moet_w2: did you mean VLLM_MOE_W2_MAPPED_LAYERS?" in log


def test_a_layer_key_out_of_range_ends_the_start(tmp_path, demo_checkpoint):
    log = serve_past_the_launcher(tmp_path, demo_checkpoint, VLLM_MOE_W2_MAPPED_LAYERS="2,99")
    assert "VLLM_MOE_W2_MAPPED_LAYERS: layer key 99 is out of range; this model has target layers 0..3" in log


def test_a_missing_expert_tensor_ends_the_start(tmp_path, demo_checkpoint):
    name = "layers.1.ffn.experts.5.w2.weight"
    model = without_tensor(demo_checkpoint, tmp_path / "model", name)
    log = serve_past_the_launcher(tmp_path, model)
    assert f"{name}: missing from the checkpoint" in log


def without_tensor(source: Path, target: Path, name: str) -> Path:
    """A copy of a checkpoint that lacks one tensor, in its index as well as in its shard."""
    shutil.copytree(source, target)
    index = json.loads((target / checkpoint.INDEX).read_text())
    shard = target / index["weight_map"].pop(name)
    tensors = load_file(shard)
    del tensors[name]
    save_file(tensors, shard)
    (target / checkpoint.INDEX).write_text(json.dumps(index))
    return target


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
