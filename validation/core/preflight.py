"""Before the first request: the server is the one that the recipe describes, and what it is goes into the manifest."""

from __future__ import annotations

import json
from typing import Any

import openai

from moet_w2 import audit
from validation import checks
from validation.target import Target

from . import digest
from .errors import RunError, ServerError
from .wire import Server

AUDIT_KEPT = ("allocated_mapped_layers", "mapped_bytes", "w2_bytes", "uncorrected_layers", "redundant_gpu_w2_bytes")
SERVING_KEPT = ("profile", "max_model_len", "kv_cache_tokens", "kv_cache_dtype", "speculative", "graph_mode")


def examine(server: Server, target: Target) -> dict[str, Any]:
    """What is served, for the manifest.

    Returns:
        model, max_model_len, recipe, recipe_sha256, and of the audit its digest and main facts (None without W2).

    Raises:
        ServerError: the server cannot be asked.
        RunError: another model or limit is served, the recipe is not the served one, or the audit contradicts it.
    """
    limit = _limit(server, target)
    try:
        # Smoke's own check of recipe and audit; it asks no server.
        checks.check_audit(checks.Context(target, openai.OpenAI(api_key="none"), 0))
    except checks.CheckFailed as error:
        hint = "; --no-audit, if W2 is off" if "does not exist" in str(error) else ""
        raise RunError(f"{error}{hint}") from None
    found = {
        "model": target.model,
        "max_model_len": limit,
        "recipe": target.recipe.name,
        "recipe_sha256": target.recipe.digest or None,
        "audit_sha256": None,
        "audit": None,
    }
    if target.audit_path is None:
        return found
    document = audit.load(target.audit_path)
    serving = document.get("serving") or {}
    facts = {name: document[name] for name in AUDIT_KEPT} | {name: serving.get(name) for name in SERVING_KEPT}
    return found | {"audit_sha256": digest.of_file(target.audit_path), "audit": facts}


def _limit(server: Server, target: Target) -> int:
    try:
        cards = {card["id"]: card for card in json.loads(server.get("/v1/models"))["data"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{server.base_url}/v1/models is no list of models ({error!r})") from None
    if target.model not in cards:
        raise RunError(f"{server.base_url} serves {', '.join(cards) or 'nothing'}, not {target.model}; see --model")
    limit, wanted = cards[target.model].get("max_model_len"), target.recipe.expect.max_model_len
    if limit != wanted:
        raise RunError(f"max_model_len of {target.model} is {limit}, the recipe expects {wanted}; serve that recipe")
    return limit
