"""Settings that this model, this extension or the chip cannot run: one table, refused before anything is loaded.

The same rules judge a recipe before its server starts (:func:`from_recipe`, no torch) and vLLM's own configuration
inside the server (:func:`from_vllm`), which may have been started without a recipe. Names and defaults are those of
the pinned vLLM; a test holds the lists below against its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .recipe import Recipe

MEGA_MOE_BACKENDS = (
    "deep_gemm_mega_moe",
    "flashinfer_moe_ep_cutedsl",
    "flashinfer_moe_ep_mega_deep_gemm",
    "aiter_mega_moe",
)
"""Backends that compute experts past the layer that a quantization method gets (vllm/config/kernel.py)."""
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_ds_mla")
"""What ends as the model's own packed FP8 layout; vLLM writes the last of them back into its configuration."""
INDEXER_DTYPES = ("auto", "fp8")
BLOCK_TOKENS = 256
"""Tokens of a KV block that the attention kernels of the model take; a block may be several of them."""


@dataclass(frozen=True)
class Asked:
    """What a server is asked for, as far as a rule looks at it.

    Attributes:
        device: ``cuda`` or ``cpu``.
        capability: of the GPU, (major, minor), or None where it is not known.
        w2: whether experts are served as W2.
        graphs: whether CUDA graphs are captured.
        model_runner: the V2 model runner is used.
        breakable_graphs: VLLM_USE_BREAKABLE_CUDAGRAPH is on, which is vLLM's default for this model.
        block_size: tokens, or None where vLLM chooses.
        plugins: what VLLM_PLUGINS names, or None where it does not filter.
    """

    device: str = "cuda"
    capability: tuple[int, int] | None = None
    w2: bool = True
    graphs: bool = True
    expert_parallel: bool = False
    eplb: bool = False
    pipeline_parallel: int = 1
    data_parallel: int = 1
    prefill_context_parallel: int = 1
    tensor_parallel: int = 1
    corrected: bool = False
    moe_backend: str = "auto"
    draft_moe_backend: str = "auto"
    kv_cache_dtype: str = "auto"
    indexer_kv_dtype: str = "auto"
    indexer_sparse_logits: bool = False
    block_size: int | None = None
    model_runner_v2: bool = True
    breakable_graphs: bool = True
    deep_gemm: bool = True
    startup_plan: bool = False
    rust_frontend: bool = False
    plugins: str | None = None

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class Refusal:
    """What is refused, with why, and what to do instead."""

    value: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.value}; {self.remedy}"


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        when: whether it applies.
        what: option or variable, and the reason; ``{field}`` stands for a value of :class:`Asked`.
        remedy: what to do instead.
        stock: whether it also applies to vLLM's own experts.
    """

    when: Callable[[Asked], bool]
    what: str
    remedy: str
    stock: bool = False


def _mega(backend: str) -> bool:
    return backend.lower().replace("-", "_") in MEGA_MOE_BACKENDS


RULES: tuple[Rule, ...] = (
    Rule(
        lambda a: a.expert_parallel,
        "--enable-expert-parallel: every rank holds a share of each W2 expert, none a share of the experts",
        "remove it; tensor-parallel-size spreads the experts",
    ),
    Rule(lambda a: a.eplb, "--enable-eplb: W2 experts have one place each and cannot be moved", "remove it"),
    Rule(
        lambda a: a.pipeline_parallel > 1,
        "--pipeline-parallel-size {pipeline_parallel}: the layer plan is made for one stage",
        "use tensor-parallel-size",
    ),
    Rule(
        lambda a: a.data_parallel > 1,
        "--data-parallel-size {data_parallel}: vLLM would split each expert over all replicas, W2 does not",
        "start one server for each replica",
    ),
    Rule(
        lambda a: a.prefill_context_parallel > 1,
        "--prefill-context-parallel-size {prefill_context_parallel}: it splits experts as data parallelism does",
        "remove it",
    ),
    Rule(
        lambda a: a.corrected and a.tensor_parallel > 1,
        "FP4 correction at --tensor-parallel-size {tensor_parallel}: ranks would correct different experts",
        "set w2.correction.gb to 0, or serve on one GPU",
    ),
    Rule(
        lambda a: _mega(a.moe_backend),
        "--moe-backend {moe_backend}: it computes the experts itself, from weights that W2 does not keep",
        "use auto",
    ),
    Rule(
        lambda a: _mega(a.draft_moe_backend),
        "--speculative-config.moe_backend {draft_moe_backend}: it computes the draft's experts itself",
        "use auto",
    ),
    Rule(
        lambda a: not a.model_runner_v2,
        "Model Runner V1 (VLLM_USE_V2_MODEL_RUNNER=0, no Triton, or an option that V2 lacks): the extension and "
        "DSpark attach to V2",
        "unset the variable, and see vLLM's log for an option that V2 lacks",
    ),
    Rule(
        lambda a: a.startup_plan,
        "VLLM_ENABLE_STARTUP_PLAN=1: a saved plan does not know how much W2 and correction take",
        "unset it",
    ),
    Rule(
        lambda a: a.rust_frontend,
        "VLLM_USE_RUST_FRONTEND=1: the Rust front end has parsers of its own and none of this distribution",
        "unset it",
    ),
    Rule(
        lambda a: a.plugins is not None and "moet_w2" not in {name.strip() for name in a.plugins.split(",")},
        "VLLM_PLUGINS={plugins}: it leaves out moet_w2",
        "add moet_w2 to it, or unset it",
    ),
    Rule(
        lambda a: a.cuda and a.kv_cache_dtype not in KV_CACHE_DTYPES,
        "--kv-cache-dtype {kv_cache_dtype}: the model's attention reads its packed FP8 layout only",
        "use fp8 or auto",
        stock=True,
    ),
    Rule(
        lambda a: a.indexer_kv_dtype == "mxfp4" and a.cuda and (a.capability or (0, 0))[0] != 10,
        "--attention-config.indexer_kv_dtype mxfp4: only compute capability 10.x can read such an indexer cache",
        "use fp8 or auto",
        stock=True,
    ),
    Rule(
        lambda a: a.indexer_kv_dtype not in (*INDEXER_DTYPES, "mxfp4"),
        "--attention-config.indexer_kv_dtype {indexer_kv_dtype}: this model's indexer has no such cache",
        "use fp8 or auto",
        stock=True,
    ),
    Rule(
        lambda a: a.indexer_sparse_logits,
        "--attention-config.indexer_sparse_logits: it belongs to DeepSeek-V4.1's two-level indexer",
        "remove it",
        stock=True,
    ),
    Rule(
        lambda a: a.block_size is not None and a.block_size % BLOCK_TOKENS != 0,
        "--block-size {block_size}: the model's attention takes blocks of 256 tokens",
        "use 256",
        stock=True,
    ),
    Rule(
        lambda a: a.cuda and a.graphs and not a.breakable_graphs,
        "VLLM_USE_BREAKABLE_CUDAGRAPH=0: piecewise graphs of this model are breakable graphs in this vLLM",
        "set it to 1, or serve with enforce-eager",
        stock=True,
    ),
    Rule(
        lambda a: a.cuda and not a.deep_gemm,
        "VLLM_USE_DEEP_GEMM=0: indexer and output projection of this model have no other kernels",
        "unset it",
        stock=True,
    ),
)
"""Every refusal, in the order in which they are told."""


def judge(asked: Asked) -> list[Refusal]:
    """What of it is refused; empty where it can be served."""
    rules = (rule for rule in RULES if (asked.w2 or rule.stock) and rule.when(asked))
    return [Refusal(rule.what.format_map(vars(asked)), rule.remedy) for rule in rules]


def from_recipe(
    recipe: Recipe,
    environ: Mapping[str, str],
    device: str,
    capability: tuple[int, int] | None = None,
    w2: bool = True,
) -> Asked:
    """Translate a recipe.

    Args:
        recipe: what is to be served.
        environ: the environment of the server.
        device: ``cuda`` or ``cpu``.
        capability: of the GPU, None where it is not known.
        w2: whether experts are served as W2.
    """
    options = _flat(recipe.engine)

    def number(name: str) -> int:
        value = options.get(name, 1)
        return value if isinstance(value, int) else 1

    def variable(name: str, default: bool) -> bool:
        text = environ.get(name, "").strip().lower()
        return default if not text else text in ("1", "true")

    return Asked(
        device=device,
        capability=capability,
        w2=w2,
        graphs=not options.get("enforce-eager", False),
        expert_parallel=bool(options.get("enable-expert-parallel", False)),
        eplb=bool(options.get("enable-eplb", False)),
        pipeline_parallel=number("pipeline-parallel-size"),
        data_parallel=number("data-parallel-size"),
        prefill_context_parallel=number("prefill-context-parallel-size"),
        tensor_parallel=number("tensor-parallel-size"),
        corrected=bool(recipe.w2.correction.gb),
        moe_backend=str(options.get("moe-backend", options.get("kernel-config.moe-backend", "auto"))),
        draft_moe_backend=str(options.get("speculative-config.moe-backend") or "auto"),
        kv_cache_dtype=str(options.get("kv-cache-dtype", "auto")),
        indexer_kv_dtype=str(options.get("attention-config.indexer-kv-dtype", "auto")),
        indexer_sparse_logits=bool(options.get("attention-config.indexer-sparse-logits", False)),
        block_size=options.get("block-size"),
        model_runner_v2=variable("VLLM_USE_V2_MODEL_RUNNER", True),
        breakable_graphs=variable("VLLM_USE_BREAKABLE_CUDAGRAPH", True),
        deep_gemm=variable("VLLM_USE_DEEP_GEMM", True),
        startup_plan=variable("VLLM_ENABLE_STARTUP_PLAN", False),
        rust_frontend=variable("VLLM_USE_RUST_FRONTEND", False),
        plugins=environ.get("VLLM_PLUGINS"),
    )


def from_vllm(vllm_config: Any) -> Asked:
    """Translate vLLM's configuration, inside the server: a VllmConfig of the pinned vLLM, set up by its platform."""
    from vllm import envs as vllm_envs
    from vllm.platforms import current_platform

    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    attention, speculative = vllm_config.attention_config, vllm_config.speculative_config
    capability = current_platform.get_device_capability()
    return Asked(
        device=current_platform.device_type,
        capability=None if capability is None else (capability.major, capability.minor),
        graphs=not vllm_config.model_config.enforce_eager,
        expert_parallel=parallel.enable_expert_parallel,
        eplb=parallel.enable_eplb,
        pipeline_parallel=parallel.pipeline_parallel_size,
        data_parallel=parallel.data_parallel_size,
        prefill_context_parallel=parallel.prefill_context_parallel_size,
        tensor_parallel=parallel.tensor_parallel_size,
        moe_backend=vllm_config.kernel_config.moe_backend,
        draft_moe_backend=(speculative and speculative.moe_backend) or "auto",
        kv_cache_dtype=cache.cache_dtype,
        indexer_kv_dtype=attention.indexer_kv_dtype,
        indexer_sparse_logits=attention.indexer_sparse_logits,
        block_size=cache.block_size if cache.user_specified_block_size else None,
        model_runner_v2=vllm_config.use_v2_model_runner,
        # vLLM turns it on for this model while it sets up its configuration, unless the variable is there.
        breakable_graphs=vllm_envs.VLLM_USE_BREAKABLE_CUDAGRAPH,
        deep_gemm=vllm_envs.VLLM_USE_DEEP_GEMM,
        startup_plan=vllm_envs.VLLM_ENABLE_STARTUP_PLAN,
        rust_frontend=vllm_envs.VLLM_USE_RUST_FRONTEND,
    )


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options with those of nested mappings by dotted names; ``_`` and ``-`` are one, as for vLLM's command line."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        path = prefix + str(name).replace("_", "-")
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{path}.")
        else:
            flat[path] = value
    return flat
