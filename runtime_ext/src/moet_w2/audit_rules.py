"""When an audit holds: by itself, which a start must pass, and against the recipe that served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import quantizer_abi
from .config import SYNTHETIC_ORIGIN
from .placement import Placement
from .recipe_fields import AUTO

if TYPE_CHECKING:
    from .recipe import Recipe

_OPTIONS = {
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "block-size": "block_size",
    "enable-prefix-caching": "prefix_caching",
    "gpu-memory-utilization": "gpu_memory_utilization",
}
"""Engine options of a recipe -> facts of ``serving`` that must be what they say, where the recipe names them."""


def violations(document: dict[str, Any]) -> list[str]:
    """Rules that hold for every server, whatever it serves.

    Args:
        document: an audit as :meth:`moet_w2.audit.Audit.document` makes it.

    Returns:
        one line for each rule that is broken; empty when the audit holds.
    """
    keys = [layer["key"] for layer in document["layers"]]
    planned = document["target_layers"] + document["draft_layers"]
    mapped = [layer for layer in document["layers"] if layer["placement"] == Placement.MAPPED]
    pool = document["correction"] or {"slots": 0, "row_bytes": 0, "bytes": 0}
    facts = [
        ("layers that are not complete", _not_ready(document), []),
        ("W2 layers", len(keys), planned),
        ("allocated mapped layers", document["allocated_mapped_layers"], document["configured_mapped_layers"]),
        ("mapped bytes", document["mapped_bytes"], sum(layer["bytes"] for layer in mapped)),
        ("redundant GPU W2 bytes", document["redundant_gpu_w2_bytes"], 0),
        ("correction bytes", pool["bytes"], pool["slots"] * pool["row_bytes"]),
        ("correctable layers among those excluded", _wrongly_correctable(document), []),
    ]
    problems = [f"audit: {name}: {found}, expected {wanted}" for name, found, wanted in facts if found != wanted]
    for layer in document["layers"]:
        problems += _layer(layer)
    if document["serving"] is not None:
        problems += _capacity(document["serving"])
    return problems


def check(document: dict[str, Any], recipe: Recipe) -> list[str]:
    """Judge an audit by its own rules and by the recipe that served.

    Args:
        document: an audit as :func:`moet_w2.audit.load` returns it; of one rank under tensor parallelism, whose
            mapped bytes are its share of the recipe's.
        recipe: the recipe.

    Returns:
        one line for each disagreement; empty when the audit holds.
    """
    expect = recipe.expect
    wanted = list(expect.mapped_layers)
    facts = [
        ("state", document["state"], "ready"),
        ("quantizer abi", document["quantizer"]["abi"], quantizer_abi.QUANTIZER_ABI),
        ("zero mode", document["quantizer"]["zero_mode"], quantizer_abi.ZERO_MODE),
        ("configured mapped layers", document["configured_mapped_layers"], wanted),
        ("allocated mapped layers", document["allocated_mapped_layers"], wanted),
        ("mapped bytes", document["mapped_bytes"], expect.mapped_bytes // document["tensor_parallel"]["size"]),
        ("W2 layers", len(document["layers"]), expect.w2_layers),
        ("redundant GPU W2 bytes", document["redundant_gpu_w2_bytes"], 0),
        *_correction(document["correction"], recipe),
        ("uncorrected layers", document["uncorrected_layers"], list(recipe.w2.exclude_layers)),
        *_serving(document["serving"], recipe),
    ]
    if recipe.digest:  # what a person gave by flags alone says nothing of it
        facts.append(("ranks", document["tensor_parallel"]["size"], recipe.engine.get("tensor-parallel-size", 1)))
    problems = [f"audit: {name} is {found}, the recipe expects {want}" for name, found, want in facts if found != want]
    problems += _origins(document, recipe.model.synthetic)
    return problems + violations(document)


def _origins(document: dict[str, Any], synthetic: bool) -> Iterator[str]:
    """Weights must be what the recipe serves: those of a checkpoint, or for a synthetic one made up."""
    for layer in document["layers"]:
        if layer["origin"] == SYNTHETIC_ORIGIN and not synthetic:
            yield f"audit: layer {layer['key']}: its weights are made up (origin {layer['origin']})"
        if layer["origin"] != SYNTHETIC_ORIGIN and synthetic:
            yield f"audit: layer {layer['key']}: its weights are of a {layer['origin']}, the recipe is synthetic"


def _not_ready(document: dict[str, Any]) -> list[int]:
    return [layer["key"] for layer in document["layers"] if layer["state"] != "ready"]


def _wrongly_correctable(document: dict[str, Any]) -> list[int]:
    excluded = document["uncorrected_layers"]
    return [layer["key"] for layer in document["layers"] if layer["correctable"] and layer["key"] in excluded]


def _correction(pool: dict[str, Any] | None, recipe: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """(name, found, wanted) of the correction pool. Its size is in whole rows of this model, or what fitted."""
    asked = recipe.w2.correction
    found = 0 if pool is None else pool["bytes"]
    if asked.gb == AUTO:
        if not found:
            yield "correction bytes", found, "more than none"
        return
    row = 1 if pool is None else pool["row_bytes"]
    yield "correction bytes", found, int(asked.gb * 2**30) // row * row
    if pool is not None:
        yield "correction policy", pool["policy"], asked.policy
        yield "FP4 in prefill", pool["prefill"], asked.prefill_fp4


def _capacity(serving: dict[str, Any]) -> Iterator[str]:
    """One request of the longest length that is admitted must fit into the KV cache."""
    held, admitted = serving["kv_cache_tokens"], serving["max_model_len"]
    if held is not None and held < admitted:
        yield f"audit: the KV cache holds {held:,} tokens, {admitted:,} are admitted; lower --max-model-len"


def _serving(serving: dict[str, Any] | None, recipe: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """(name, found, wanted) of what the recipe says of the engine, as far as it says it."""
    if serving is None:
        yield "facts of the start", "missing", "present"
        return
    yield "max_model_len", serving["max_model_len"], recipe.expect.max_model_len
    if recipe.digest:  # what a person gave by flags alone says nothing of these
        yield "speculative decoding", serving["speculative"], _speculative(recipe)
        if serving["profile"] is not None:
            yield "profile", serving["profile"], recipe.name
    mode = _graph_mode(recipe)
    if mode is not None:
        yield "graph mode", serving["graph_mode"], mode
    for option, fact in _OPTIONS.items():
        if option in recipe.engine:
            yield option, serving[fact], recipe.engine[option]


def _speculative(recipe: Recipe) -> dict[str, Any] | None:
    asked = _mapping(recipe.engine.get("speculative-config"))
    if not asked:
        return None
    return {"method": asked.get("method"), "tokens": asked.get("num_speculative_tokens")}


def _graph_mode(recipe: Recipe) -> str | None:
    """Name of the graph mode that a recipe states, None where it leaves that to vLLM."""
    if recipe.engine.get("enforce-eager"):
        return "NONE"
    mode = _mapping(recipe.engine.get("compilation-config")).get("cudagraph_mode")
    return None if mode is None else str(mode)


def _mapping(option: Any) -> dict[str, Any]:
    """An engine option that is a mapping, or JSON of one; vLLM takes both."""
    if isinstance(option, str):
        option = json.loads(option)
    return option if isinstance(option, dict) else {}


def _layer(layer: dict[str, Any]) -> Iterator[str]:
    name, end = f"audit: layer {layer['key']}", 0
    for part_name, part in layer["parts"].items():
        if part["offset"] != end:
            yield f"{name}: {part_name} begins at {part['offset']}, expected {end}"
        end = part["offset"] + part["bytes"]
    if end != layer["bytes"]:
        yield f"{name}: its parts end at {end}, it holds {layer['bytes']} bytes"
    if layer["redundant_bytes"] != 0:
        yield f"{name}: redundant bytes are {layer['redundant_bytes']}, expected 0"
    host = layer["host"]
    if (host is not None) != (layer["placement"] == Placement.MAPPED):
        yield f"{name}: placement {layer['placement']} and its host record disagree"
    if host is not None:
        if layer["allocator_bytes"]:
            yield f"{name}: mapped, yet it took {layer['allocator_bytes']} device bytes"
        if host["uva_equal"] is False:
            yield f"{name}: the device's pointer is not the host's"
        pages = sum(host["pages_by_node"].values())
        if not host["pages_note"] and pages * host["page_bytes"] != host["locked_bytes"]:
            yield f"{name}: {pages} pages verified, not its {host['locked_bytes']} bytes"
        if len(host["pages_by_node"]) > 1:
            yield f"{name}: pages on several nodes: {host['pages_by_node']}"
