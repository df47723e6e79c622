"""One given placement, predicted: what a benchmark prints beside what it measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RecipeError
from ..recipe import Recipe
from . import memory, prefill, speed
from .machine import Machine
from .memory import Memory
from .model import FLASH, Model, from_config
from .placements import DEFAULT, Assumptions
from .settings import Settings
from .speed import Decode, Load

UTILIZATION = 0.92
"""vLLM's gpu-memory-utilization where a recipe names none (vllm/config/cache.py)."""
LOGITS_MB, ESTIMATE_GRAPHS = "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
ENVIRONMENT = {LOGITS_MB: "512", ESTIMATE_GRAPHS: "1"}
"""Variables that memory depends on, with vLLM's defaults (vllm/envs.py)."""


@dataclass(frozen=True)
class Prediction:
    """What follows from a placement.

    Attributes:
        memory: bytes by purpose, and KV tokens as vLLM reports them.
        decode: a step and its rate, by concurrent requests.
        prefill_seconds: of an uncached prompt, by its tokens.
    """

    memory: Memory
    decode: dict[int, Decode]
    prefill_seconds: dict[int, float]


def predict(
    model: Model,
    machine: Machine,
    settings: Settings,
    mapped: Sequence[int],
    requests: Sequence[int] = (1, 4),
    context: int | None = None,
    prompts: Sequence[int] = (),
    given: Assumptions = DEFAULT,
    link_bytes: Mapping[int, float] | None = None,
) -> Prediction:
    """Predict a placement.

    Args:
        model: its dimensions.
        machine: the card as it was measured: ``cuda_bytes`` is the total that CUDA reports, ``hbm_gbs`` and
            ``link_gbs`` what plain reads reach.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        requests: numbers of concurrent requests.
        context: tokens that each request has behind it while it decodes; None: as assumed.
        prompts: tokens of uncached prompts.
        given: assumptions; ``tokens_per_step`` should be the measured one, 1 + accepted tokens a draft.
        link_bytes: bytes that a step was counted to read over the link, by concurrent requests; for those that it
            lacks, experts are drawn at random.
    """
    mapped = tuple(sorted(mapped))
    context = given.decode_context if context is None else context
    counted = link_bytes or {}
    loads = [
        Load(count, context, given.tokens_per_step, given.correction_hits, counted.get(count)) for count in requests
    ]
    return Prediction(
        memory.account(model, machine, settings, mapped, given.runtime_bytes, given.others),
        {load.requests: speed.decode(model, machine, settings, mapped, load, given.costs) for load in loads},
        {tokens: prefill.seconds(model, machine, settings, mapped, tokens, given.costs) for tokens in prompts},
    )


def of_recipe(recipe: Recipe, config: Mapping[str, Any] | None = None) -> tuple[Model, Settings, tuple[int, ...]]:
    """Model, settings and mapped layers of a recipe.

    Args:
        recipe: the recipe.
        config: content of the checkpoint's config.json; None: DeepSeek-V4-Flash.

    Raises:
        RecipeError: the recipe lacks an option that memory depends on, or its geometry is not the checkpoint's.
    """
    engine, config = recipe.engine, FLASH if config is None else config
    speculative = engine.get("speculative-config") or {}
    if isinstance(speculative, str):
        speculative = json.loads(speculative)
    target = from_config(config).target_layers
    drafts = recipe.expect.w2_layers - target
    if drafts < 0:
        raise RecipeError(
            f"{recipe.file}: expect.w2_layers = {recipe.expect.w2_layers}, but the model has {target} target layers; "
            "give the folder of its checkpoint with --model"
        )
    model = from_config(config, drafts)
    if recipe.model.geometry is not None and recipe.model.geometry.layer != model.geometry:
        raise RecipeError(
            f"{recipe.file}: model.geometry is not that of the model; give the folder of its checkpoint with --model"
        )
    nbytes = recipe.w2.correction.nbytes
    if nbytes is None:
        raise RecipeError(f"{recipe.file}: w2.correction.gb is auto, which only a server can size; name GiB to plan")
    for option in ("max-num-seqs", "max-num-batched-tokens"):
        if option not in engine:
            raise RecipeError(f"{recipe.file}: engine.{option} is missing, and vLLM's own depends on the card; name it")
    variables = ENVIRONMENT | {name: text for name, text in recipe.environment.items() if name in ENVIRONMENT}
    for name, text in variables.items():
        if not (text.isascii() and text.isdecimal()):
            raise RecipeError(f"{recipe.file}: environment.{name} = {text!r} is no whole number, which vLLM wants")
    settings = Settings(
        context=engine["max-model-len"],
        utilization=engine.get("gpu-memory-utilization", UTILIZATION),
        seqs=engine["max-num-seqs"],
        batched=engine["max-num-batched-tokens"],
        speculative=speculative.get("num_speculative_tokens", 0) if drafts else 0,
        correction_bytes=nbytes,
        excluded=recipe.w2.exclude_layers,
        block=engine.get("block-size", 256),
        async_scheduling=engine.get("async-scheduling", True),
        logits_bytes=int(variables[LOGITS_MB]) << 20,
        graphs_counted=bool(int(variables[ESTIMATE_GRAPHS])),
    )
    return model, settings, recipe.w2.mapped_layers
