"""What is refused before anything is loaded: every rule fires, alone, from a recipe and from vLLM's configuration."""

from __future__ import annotations

import ast
import dataclasses
from importlib import util
from pathlib import Path

import pytest
from recipe_text import VALID, write

from moet_w2 import recipe, refusals
from moet_w2.refusals import Asked, judge

# One case a rule, in the table's order: what breaks it, and a word of the message.
CASES: list[tuple[dict, str]] = [
    ({"expert_parallel": True}, "--enable-expert-parallel"),
    ({"eplb": True}, "--enable-eplb"),
    ({"pipeline_parallel": 2}, "--pipeline-parallel-size 2"),
    ({"data_parallel": 2}, "--data-parallel-size 2"),
    ({"prefill_context_parallel": 2}, "--prefill-context-parallel-size 2"),
    ({"corrected": True, "tensor_parallel": 2}, "--tensor-parallel-size 2"),
    ({"moe_backend": "deep_gemm_mega_moe"}, "--moe-backend deep_gemm_mega_moe"),
    ({"draft_moe_backend": "flashinfer-moe-ep-cutedsl"}, "--speculative-config.moe_backend"),
    ({"model_runner_v2": False}, "VLLM_USE_V2_MODEL_RUNNER=0"),
    ({"startup_plan": True}, "VLLM_ENABLE_STARTUP_PLAN=1"),
    ({"rust_frontend": True}, "VLLM_USE_RUST_FRONTEND=1"),
    ({"plugins": "lora_resolver"}, "VLLM_PLUGINS=lora_resolver"),
    ({"kv_cache_dtype": "bfloat16"}, "--kv-cache-dtype bfloat16"),
    ({"indexer_kv_dtype": "mxfp4", "capability": (12, 0)}, "indexer_kv_dtype mxfp4"),
    ({"indexer_kv_dtype": "nvfp4"}, "indexer_kv_dtype nvfp4"),
    ({"indexer_sparse_logits": True}, "indexer_sparse_logits"),
    ({"block_size": 64}, "--block-size 64"),
    ({"breakable_graphs": False}, "VLLM_USE_BREAKABLE_CUDAGRAPH=0"),
    ({"deep_gemm": False}, "VLLM_USE_DEEP_GEMM=0"),
]

# What a recipe or its environment says -> the field of Asked that it becomes.
OPTIONS = [
    ({"enable-expert-parallel": True}, {}, {"expert_parallel": True}),
    ({"enable-eplb": True}, {}, {"eplb": True}),
    ({"pipeline-parallel-size": 2}, {}, {"pipeline_parallel": 2}),
    ({"moe-backend": "deep_gemm_mega_moe"}, {}, {"moe_backend": "deep_gemm_mega_moe"}),
    ({"kernel-config": {"moe_backend": "aiter_mega_moe"}}, {}, {"moe_backend": "aiter_mega_moe"}),
    ({"kernel-config.moe-backend": "aiter_mega_moe"}, {}, {"moe_backend": "aiter_mega_moe"}),
    ({"speculative-config": {"method": "dspark", "moe_backend": "x"}}, {}, {"draft_moe_backend": "x"}),
    ({"kv-cache-dtype": "nvfp4"}, {}, {"kv_cache_dtype": "nvfp4"}),
    ({"attention-config": {"indexer_kv_dtype": "mxfp4"}}, {}, {"indexer_kv_dtype": "mxfp4"}),
    ({"attention-config": {"indexer_sparse_logits": True}}, {}, {"indexer_sparse_logits": True}),
    ({"block-size": 64}, {}, {"block_size": 64}),
    ({"enforce-eager": True}, {}, {"graphs": False}),
    ({}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"model_runner_v2": False}),
    ({}, {"VLLM_USE_V2_MODEL_RUNNER": "False"}, {"model_runner_v2": False}),
    ({}, {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}, {"breakable_graphs": False}),
    ({}, {"VLLM_USE_DEEP_GEMM": "0"}, {"deep_gemm": False}),
    ({}, {"VLLM_ENABLE_STARTUP_PLAN": "1"}, {"startup_plan": True}),
    ({}, {"VLLM_USE_RUST_FRONTEND": "1"}, {"rust_frontend": True}),
    ({}, {"VLLM_PLUGINS": "a,b"}, {"plugins": "a,b"}),
    ({}, {"VLLM_PLUGINS": ""}, {"plugins": ""}),
]


def test_what_is_usual_is_not_refused() -> None:
    assert judge(Asked()) == judge(Asked(device="cpu", graphs=False)) == []
    profile = Asked(capability=(12, 0), kv_cache_dtype="fp8", block_size=256, corrected=True, plugins="moet_w2, other")
    assert judge(profile) == []
    assert judge(Asked(indexer_kv_dtype="mxfp4", capability=(10, 0))) == []


@pytest.mark.parametrize(("changes", "word"), CASES, ids=[word for _, word in CASES])
def test_every_rule_fires_alone(changes: dict, word: str) -> None:
    (refusal,) = judge(Asked(**changes))
    assert word in refusal.value and refusal.remedy
    assert "\n" not in str(refusal) and "{" not in str(refusal)


def test_every_rule_has_a_case() -> None:
    fired = [[rule.when(Asked(**changes)) for rule in refusals.RULES].index(True) for changes, _ in CASES]
    assert fired == list(range(len(refusals.RULES)))


def test_rules_of_a_gpu_leave_a_cpu_alone() -> None:
    assert judge(Asked(device="cpu", deep_gemm=False, breakable_graphs=False, kv_cache_dtype="bfloat16")) == []


def test_stock_experts_are_held_to_the_rules_of_the_model_alone() -> None:
    asked = Asked(w2=False, eplb=True, block_size=64)
    assert [refusal.value.split(":")[0] for refusal in judge(asked)] == ["--block-size 64"]


@pytest.mark.parametrize(("engine", "environ", "wanted"), OPTIONS)
def test_a_recipe_is_translated(tmp_path: Path, engine: dict, environ: dict, wanted: dict) -> None:
    loaded = recipe.load(write(tmp_path, VALID | {"engine": {"max-model-len": 512} | engine}))
    assert refusals.from_recipe(loaded, environ, "cuda") == dataclasses.replace(Asked(), **wanted)


def test_the_correction_of_a_recipe_is_seen(tmp_path: Path) -> None:
    engine = {"max-model-len": 512, "tensor-parallel-size": 2}
    data = VALID | {"engine": engine, "w2": {"mapped_layers": [2, 3], "correction": {"gb": 6}}}
    (refusal,) = judge(refusals.from_recipe(recipe.load(write(tmp_path, data)), {}, "cuda"))
    assert "FP4 correction" in refusal.value


def test_vllms_configuration_is_translated(monkeypatch) -> None:
    from vllm.config import VllmConfig

    made = VllmConfig()
    monkeypatch.setattr(type(made), "use_v2_model_runner", property(lambda self: True))
    monkeypatch.setattr(made, "model_config", type("Model", (), {"enforce_eager": True})())
    assert judge(refusals.from_vllm(made)) == []
    monkeypatch.setattr(made.parallel_config, "enable_eplb", True)
    monkeypatch.setattr(made.kernel_config, "moe_backend", "deep_gemm_mega_moe")
    monkeypatch.setattr(made.attention_config, "indexer_kv_dtype", "nvfp4")
    monkeypatch.setattr(made.cache_config, "user_specified_block_size", True)
    monkeypatch.setattr(made.cache_config, "block_size", 96)
    words = ("--enable-eplb", "--moe-backend", "indexer_kv_dtype nvfp4", "--block-size 96")
    found = judge(refusals.from_vllm(made))
    assert len(found) == len(words)
    assert all(word in refusal.value for word, refusal in zip(words, found, strict=True))


def literal(module: str, name: str) -> object:
    """The value of a module's constant, read from its source without importing it."""
    source = Path(util.find_spec("vllm").origin).parent / module
    for node in ast.walk(ast.parse(source.read_text())):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    raise AssertionError(f"{module} has no {name}")


def words(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_lists_are_those_of_the_pinned_vllm() -> None:
    from vllm.config import kernel

    assert kernel.MEGA_MOE_BACKENDS <= set(refusals.MEGA_MOE_BACKENDS) <= set(kernel.MoEBackend.__args__)
    indexer = words(literal("v1/attention/backends/mla/indexer.py", "DSA_INDEXER_KV_DTYPES"))
    assert indexer == {"mxfp4", *refusals.INDEXER_DTYPES} - {"auto"}
    served = words(literal("models/deepseek_v4/sparse_mla.py", "supported_kv_cache_dtypes"))
    assert served == set(refusals.KV_CACHE_DTYPES)
