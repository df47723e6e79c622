"""Rendering: exactly this command and environment, nothing written twice."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from recipe_text import VALID, broken, write

from moet_w2 import cache_root, command, config, recipe
from moet_w2.errors import RecipeError

GOLDEN = """\
env SOME_THREADS=2 \\
    SOME_WORDS='a b' \\
    VLLM_MOE_W2=1 \\
    VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS=3 \\
    VLLM_MOE_W2_MAPPED_AUDIT_PATH={root}/.native/run/tiny/audit.json \\
    VLLM_MOE_W2_MAPPED_LAYERS=2,3 \\
    VLLM_MOE_W2_PROFILE=tiny \\
    vllm serve {root}/models/tiny \\
      --served-model-name tiny-model \\
      --host 127.0.0.1 \\
      --port 8000 \\
      --quantization moet_w2 \\
      --max-model-len 512 \\
      --enable-prefix-caching \\
      --no-async-scheduling \\
      --speculative-config '{{"method":"dspark","num_speculative_tokens":4}}' \\
      --cudagraph-capture-sizes 1 2"""


@pytest.fixture
def loaded(tmp_path):
    return recipe.load(write(tmp_path))


def test_golden(loaded, tmp_path):
    assert command.render(loaded, command.Overrides()).shell() == GOLDEN.format(root=tmp_path)


def test_shell_text_is_what_a_shell_runs(loaded, tmp_path):
    rendered = command.render(loaded, command.Overrides(), program="/bin/echo")
    words = subprocess.run(["bash", "-c", rendered.shell()], capture_output=True, text=True, check=True).stdout
    assert words.split() == " ".join(rendered.argv[1:]).split()
    assert shlex.split(rendered.shell())[0] == "env"


def test_document_says_the_same(loaded):
    rendered = command.render(loaded, command.Overrides())
    document = json.loads(json.dumps(rendered.document()))
    assert document["argv"] == list(rendered.argv)
    assert document["environment"] == dict(rendered.env)
    assert list(document["environment"]) == sorted(document["environment"])


def test_every_override_takes_its_place(loaded):
    overrides = command.Overrides(
        model_path=Path("/m"), served_model_name="other", host="::", port=81, audit_path=Path("/a.json"),
        cache_root=Path("/c"), cuda_visible_devices="1",
    )  # fmt: skip
    rendered = command.render(loaded, overrides)
    text = " ".join(rendered.argv)
    assert text.startswith("vllm serve /m --served-model-name other --host :: --port 81 --quantization moet_w2 ")
    assert rendered.env["VLLM_MOE_W2_MAPPED_AUDIT_PATH"] == "/a.json"
    caches = {name: value for name, value in rendered.env.items() if value.startswith("/c/jit/")}
    assert caches == {cache.variable: f"/c/jit/{cache.folder}" for cache in cache_root.JIT_CACHES}
    assert rendered.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert rendered.base_url == "http://[::1]:81"


def test_folders_that_are_filled_bring_their_load_format(loaded):
    overrides = command.Overrides(store_dir=Path("/s"), planes_cache_dir=Path("/p"))
    rendered = command.render(loaded, overrides)
    assert rendered.env["VLLM_MOE_W2_STORE_DIR"] == "/s" and rendered.env["VLLM_MOE_W2_PLANES_CACHE"] == "/p"
    assert rendered.argv[-2:] == ("--load-format", "moet") and rendered.load_format == "moet"
    plain, stock = command.render(loaded, command.Overrides()), command.render(loaded, overrides, stock=True)
    for each in (plain, stock):
        assert "--load-format" not in each.argv and each.load_format == "auto"
        assert not {"VLLM_MOE_W2_STORE_DIR", "VLLM_MOE_W2_PLANES_CACHE"} & each.env.keys()


def test_a_recipe_that_has_the_load_format_gets_it_once(tmp_path):
    loaded = recipe.load(write(tmp_path, broken("engine/load-format", "moet")))
    assert command.render(loaded, command.Overrides(planes_cache_dir=Path("/p"))).argv.count("--load-format") == 1


def test_a_recipe_with_another_load_format_refuses_the_folders(tmp_path):
    loaded = recipe.load(write(tmp_path, broken("engine/load-format", "safetensors")))
    with pytest.raises(RecipeError, match="engine.load-format = safetensors never fills VLLM_MOE_W2_STORE_DIR"):
        command.render(loaded, command.Overrides(store_dir=Path("/s")))


def test_stock_differs_in_the_experts_alone(loaded):
    w2, stock = (command.render(loaded, command.Overrides(), stock=choice) for choice in (False, True))
    assert [word for word in w2.argv if word not in stock.argv] == ["--quantization", "moet_w2"]
    assert {k: v for k, v in stock.env.items() if k.startswith("VLLM_MOE_W2")} == {"VLLM_MOE_W2": "0"}
    assert stock.audit_path is None


def test_nothing_is_rendered_for_empty_lists(tmp_path):
    data = broken("w2", {"mapped_layers": []})
    data["expect"] |= {"mapped_layers": [], "mapped_bytes": 0}
    env = command.render(recipe.load(write(tmp_path, data)), command.Overrides()).env
    assert not {"VLLM_MOE_W2_MAPPED_LAYERS", "VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS"} & env.keys()


@pytest.mark.parametrize("size", [6, 0.25, "auto"])
def test_correction_is_rendered_whole(tmp_path, size):
    data = broken("w2/correction", {"exclude_layers": [], "gb": size, "policy": "lru", "prefill_fp4": False})
    env = command.render(recipe.load(write(tmp_path, data)), command.Overrides()).env
    correction = {name: value for name, value in env.items() if "_DELTA_" in name or "_PREFILL_" in name}
    assert correction == {
        "VLLM_MOE_W2_DELTA_GB": str(size),
        "VLLM_MOE_W2_DELTA_POLICY": "lru",
        "VLLM_MOE_W2_PREFILL_FP4": "0",
    }


def test_a_correction_has_a_store_below_cache_root(tmp_path):
    loaded = recipe.load(write(tmp_path, broken("w2/correction/gb", 6)))
    rendered = command.render(loaded, command.Overrides(default_cache_root=Path("/d")))
    assert rendered.env["VLLM_MOE_W2_STORE_DIR"] == "/d/store" and rendered.load_format == "moet"
    assert "VLLM_MOE_W2_PLANES_CACHE" not in rendered.env
    rendered = command.render(loaded, command.Overrides(cache_root=Path("/c"), default_cache_root=Path("/d")))
    assert rendered.env["VLLM_MOE_W2_STORE_DIR"] == "/c/store"
    rendered = command.render(loaded, command.Overrides(cache_root=Path("/c"), store_dir=Path("/s")))
    assert rendered.env["VLLM_MOE_W2_STORE_DIR"] == "/s"
    data = broken("w2/correction/gb", 6)
    data["engine"]["load-format"] = "auto"
    other = recipe.load(write(tmp_path, data))
    assert "VLLM_MOE_W2_STORE_DIR" not in command.render(other, command.Overrides()).env


def test_a_gpu_keeps_everything_below_cache_root(tmp_path):
    loaded = recipe.load(write(tmp_path, {**VALID, "device": {"kind": "cuda"}}))
    rendered = command.render(loaded, command.Overrides(default_cache_root=Path("/d")))
    assert rendered.env["VLLM_MOE_W2_PLANES_CACHE"] == "/d/planes" and rendered.load_format == "moet"
    assert rendered.env["TRITON_CACHE_DIR"] == "/d/jit/triton"
    stock = command.render(loaded, command.Overrides(default_cache_root=Path("/d")), stock=True)
    assert "VLLM_MOE_W2_PLANES_CACHE" not in stock.env and stock.env["TRITON_CACHE_DIR"] == "/d/jit/triton"
    on_cpu = recipe.load(write(tmp_path, {**VALID, "device": {"kind": "cpu"}}))
    assert "TRITON_CACHE_DIR" not in command.render(on_cpu, command.Overrides()).env


def test_a_made_up_model_has_no_text_and_no_ready_planes(tmp_path):
    data = {**broken("w2/correction/gb", 6), "device": {"kind": "cuda"}}
    data["model"]["synthetic"] = True
    data["engine"] |= dict.fromkeys(command.TEXT_OPTIONS, "x")
    loaded = recipe.load(write(tmp_path, data))
    rendered = command.render(loaded, command.Overrides(default_cache_root=Path("/d")))
    assert rendered.argv[-3:] == ("--load-format", config.SYNTHETIC_FORMAT, "--skip-tokenizer-init")
    assert not {f"--{option}" for option in command.TEXT_OPTIONS} & set(rendered.argv)
    assert rendered.env["VLLM_MOE_W2_STORE_DIR"] == "/d/store" and "VLLM_MOE_W2_PLANES_CACHE" not in rendered.env
    with pytest.raises(RecipeError, match="load-format = moet_synthetic never fills VLLM_MOE_W2_PLANES_CACHE"):
        command.render(loaded, command.Overrides(planes_cache_dir=Path("/p")))


@pytest.mark.parametrize("port", [0, 65536])
def test_port_out_of_range(loaded, port):
    with pytest.raises(RecipeError, match=f"PORT={port} is out of range; use 1 to 65535"):
        command.render(loaded, command.Overrides(port=port))
