"""The pinned vLLM accepts every option that a committed recipe renders, and reads from it what was meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from server_support import REPOSITORY, clean_environment

from moet_w2 import api_key, command, recipe

PARSE = """
import dataclasses, json, sys
from vllm import envs
from vllm.config import SpeculativeConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from transformers import AutoTokenizer
from vllm.renderers.params import merge_kwargs
from vllm.tokenizers.deepseek_v4 import get_deepseek_v4_tokenizer
from vllm.tokenizers.deepseek_v4_encoding import REASONING_EFFORT_PROMPTS
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
answers = {}
for name, words in json.loads(sys.argv[1]).items():
    try:
        parsed = vars(parser.parse_args(words))
    except SystemExit as error:
        parsed = {"exit": error.code}
    answers[name] = {key: str(value) if dataclasses.is_dataclass(value) else value for key, value in parsed.items()}
    if "compilation_config" in parsed:
        graphs = parsed["compilation_config"]
        mode = graphs.cudagraph_mode
        answers[name]["compilation_config"] = [mode and mode.name, graphs.custom_ops]
answers["speculative"] = [field.name for field in dataclasses.fields(SpeculativeConfig)]
answers["variables"] = sorted(envs.environment_variables)
tokenizer = get_deepseek_v4_tokenizer(AutoTokenizer.from_pretrained(sys.argv[2]))
answers["prompts"] = []
for defaults, asked in json.loads(sys.argv[3]):
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "q"}], tokenize=False, **merge_kwargs(defaults, asked)
    )
    effort = [name for name, text in REASONING_EFFORT_PROMPTS.items() if text and text in prompt]
    answers["prompts"].append([prompt.endswith("<think>"), effort])
print(json.dumps(answers, default=str))
"""
FOLDER = REPOSITORY / "bench" / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
GUARDED = "with a key"
NO_SUCH = "an option that vLLM lacks"

BOTH: dict[str, Any] = {
    "quantization": "moet_w2",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
    "kv_cache_dtype": "fp8",
    "block_size": 256,
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "speculative_config": {"method": "dspark", "num_speculative_tokens": 4, "draft_sample_method": "greedy"},
    "compilation_config": ["FULL_AND_PIECEWISE", ["all"]],
    "override_generation_config": {"top_p": 0.95},
}
TEXT = {
    "load_format": "moet",
    "tokenizer_mode": "deepseek_v4",
    "reasoning_parser": "deepseek_v4",
    "tool_call_parser": "deepseek_v4",
    "enable_auto_tool_choice": True,
    "default_chat_template_kwargs": {"reasoning_effort": "high"},
    "skip_tokenizer_init": False,
}
MADE_UP = {"load_format": "moet_synthetic", "skip_tokenizer_init": True}
PROFILES = {
    "pro6000-300k": BOTH | TEXT | {"max_model_len": 300000, "gpu_memory_utilization": 0.974},
    "pro6000-512k": BOTH | TEXT | {"max_model_len": 524288, "gpu_memory_utilization": 0.98},
    "h200-300k": BOTH | MADE_UP | {"max_model_len": 300000, "gpu_memory_utilization": 0.6619},
    "h200-512k": BOTH | MADE_UP | {"max_model_len": 524288, "gpu_memory_utilization": 0.666},
    "h200-resident": BOTH | MADE_UP | {"max_model_len": 300000, "gpu_memory_utilization": 0.6981},
    "h100-128k": BOTH | TEXT | {"max_model_len": 131072, "gpu_memory_utilization": 0.97},
    "h200-128k": BOTH | MADE_UP | {"max_model_len": 131072, "gpu_memory_utilization": 0.5488},
}
"""The profiles of the 96 GB card as they were asked for, written down once more, and on one H200; an 80 GB card. Asked
for was 0.98446 at 524,288 tokens; a prompt ran out of memory there."""
TWELVE = ",".join(map(str, range(34, 46)))
LAYERS = {
    "pro6000-300k": ("43,44,45", 5_435_817_984),
    "pro6000-512k": ("42,43,44,45", 7_247_757_312),
    "h200-300k": ("43,44,45", 5_435_817_984),
    "h200-512k": ("42,43,44,45", 7_247_757_312),
    "h200-resident": (None, 0),
    "h100-128k": (TWELVE, 21_743_271_936),
    "h200-128k": (TWELVE, 21_743_271_936),
}
GPU_ENVIRONMENT = {
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_DEEP_GEMM": "1",
    "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "128",
    "VLLM_MOE_W2_DELTA_GB": "6",
    "VLLM_MOE_W2_DELTA_POLICY": "freq",
    "VLLM_MOE_W2_PREFILL_FP4": "1",
    "VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS": "43,44,45",
}
CARD_GIB, H200_GIB, LAYER_GIB = 95, 139.8, 1_811_939_328 / 2**30

DEFAULTS = TEXT["default_chat_template_kwargs"]
PROMPTS = [
    (DEFAULTS, {}, [True, ["high"]]),
    (DEFAULTS, {"thinking": False}, [False, []]),
    (DEFAULTS, {"enable_thinking": False}, [False, []]),
    (DEFAULTS, {"reasoning_effort": "none", "enable_thinking": False}, [False, []]),
    (DEFAULTS, {"reasoning_effort": "max", "enable_thinking": True}, [True, ["max"]]),
    # Why the recipe does not say that thinking is on.
    ({"thinking": True} | DEFAULTS, {"enable_thinking": False}, [True, ["high"]]),
]
"""Default keywords, what a request says, and the prompt: whether it asks for thinking, and with which effort."""


def rendered(path: Path) -> command.Command:
    return command.render(recipe.load(path), command.Overrides(port=8123, default_cache_root=Path("/c")))


@pytest.fixture(scope="module")
def parsed() -> dict[str, Any]:
    """What vLLM's own parser reads from each recipe's command; one process, as its import takes seconds."""
    commands = {path.stem: rendered(path).argv[2:] for path in RECIPES}
    guarded = command.Overrides(has_api_key=True)
    commands[GUARDED] = command.render(recipe.load(FOLDER / "demo-cpu.yaml"), guarded).argv[2:]
    commands[NO_SUCH] = (*commands["demo-cpu"], "--max-model-length-of-nothing", "1")
    asked = json.dumps([(defaults, asked) for defaults, asked, _ in PROMPTS])
    words = [sys.executable, "-c", PARSE, json.dumps(commands), str(REPOSITORY / "demo" / "checkpoint"), asked]
    done = subprocess.run(words, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_read_as_meant(parsed, path):
    loaded, found = recipe.load(path), parsed[path.stem]
    wanted = {
        "model_tag": str(loaded.model_path),
        "served_model_name": [loaded.model.served_name],
        "host": "127.0.0.1",
        "port": 8123,
        "quantization": "moet_w2",
        "max_model_len": loaded.expect.max_model_len,
        "enforce_eager": loaded.engine.get("enforce-eager", False),
    }
    assert {name: found[name] for name in wanted} == wanted


def test_an_option_that_vllm_lacks_is_found(parsed):
    assert parsed[NO_SUCH] == {"exit": 2}


def test_a_key_brings_the_middleware_that_asks_for_it(parsed):
    assert (parsed["demo-cpu"]["middleware"], parsed[GUARDED]["middleware"]) == ([], [api_key.GUARD])


@pytest.mark.parametrize("name", PROFILES)
def test_profile_is_the_one_that_was_asked_for(parsed, name):
    assert {option: parsed[name][option] for option in PROFILES[name]} == PROFILES[name]
    loaded, env = recipe.load(FOLDER / f"{name}.yaml"), rendered(FOLDER / f"{name}.yaml").env
    assert {variable: env.get(variable) for variable in GPU_ENVIRONMENT} == GPU_ENVIRONMENT
    assert (env.get("VLLM_MOE_W2_MAPPED_LAYERS"), loaded.expect.mapped_bytes) == LAYERS[name]
    assert (loaded.expect.w2_layers, loaded.w2.correction.nbytes) == (46, 512 * 12 * 2**20)
    assert loaded.model.geometry.layer.nbytes == 1_811_939_328


def test_every_gpu_profile_is_held_to_the_table():
    cuda = {path.stem for path in RECIPES if (device := recipe.load(path).device) and device.kind == "cuda"}
    assert cuda == PROFILES.keys() == LAYERS.keys()


@pytest.mark.parametrize("length", ["300k", "512k"])
def test_the_other_card_has_no_more_memory_than_the_first(length):
    budget = PROFILES[f"pro6000-{length}"]["gpu_memory_utilization"] * CARD_GIB
    assert PROFILES[f"h200-{length}"]["gpu_memory_utilization"] * H200_GIB == pytest.approx(budget, abs=0.01)


def test_layers_back_in_vram_get_room_of_their_own():
    mapped, resident = (PROFILES[name]["gpu_memory_utilization"] for name in ("h200-300k", "h200-resident"))
    assert (resident - mapped) * H200_GIB == pytest.approx(3 * LAYER_GIB, abs=0.01)


def test_keys_within_options_and_variables_are_ones_that_vllm_knows(parsed):
    for path in RECIPES:
        speculative = recipe.load(path).engine.get("speculative-config", {})
        assert speculative.keys() <= set(parsed["speculative"])
        variables = {name for name in rendered(path).env if name.startswith("VLLM_")}
        assert {name for name in variables if not name.startswith("VLLM_MOE_W2")} <= set(parsed["variables"])
    assert "draft_sampling_method" not in parsed["speculative"] and "VLLM_USE_V3" not in parsed["variables"]


def test_thinking_is_on_with_high_effort_and_a_request_may_turn_it_off(parsed):
    assert parsed["prompts"] == [wanted for _, _, wanted in PROMPTS]
