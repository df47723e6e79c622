"""Before the first request: the server is the one that the recipe describes, and what it is goes into the manifest."""

from __future__ import annotations

import json
from typing import Any

from moet_w2 import audit_ranks
from validation import checks
from validation.target import Target

from . import digest
from .errors import Refusal, RunError, ServerError
from .wire import Server

DISPATCH_WRITES = ("written_unix", "first_dispatch_unix")
"""Of the audit and of its layers: what a server's first request still changes. All else stays as at its start."""
AUDIT_KEPT = ("allocated_mapped_layers", "mapped_bytes", "w2_bytes", "uncorrected_layers", "redundant_gpu_w2_bytes")
SERVING_KEPT = ("profile", "max_model_len", "kv_cache_tokens", "kv_cache_dtype", "speculative", "graph_mode")


def examine(server: Server, target: Target) -> dict[str, Any]:
    """What is served, for the manifest.

    Returns:
        model, max_model_len, recipe, recipe_sha256, and of the audit a digest of this start of the server and the main
        facts of rank 0 (None without W2). Under tensor parallelism the digest is of the list of the ranks' digests.

    Raises:
        ServerError: the server cannot be asked.
        RunError: another model or limit is served, the recipe is not the served one, or the audit contradicts it.
    """
    limit = _limit(server, target)
    try:
        checks.judge_audit(target)
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
    documents = audit_ranks.load(target.audit_path)
    first, starts = documents[0], [_of_start(document) for document in documents]
    serving = first.get("serving") or {}
    facts = {name: first[name] for name in AUDIT_KEPT} | {name: serving.get(name) for name in SERVING_KEPT}
    if len(starts) == 1:
        return found | {"audit_sha256": starts[0], "audit": facts}
    return found | {"audit_sha256": digest.of_json(starts), "audit": facts | {"ranks": len(starts)}}


def _of_start(audit: dict[str, Any]) -> str:
    """Digest of one start of a server, the same for as long as it runs.

    Its process, its id and addresses of its memory are in it, which another start does not have.
    """

    def kept(section: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in section.items() if name not in DISPATCH_WRITES}

    return digest.of_json(kept(audit) | {"layers": [kept(layer) for layer in audit["layers"]]})


def _limit(server: Server, target: Target) -> int:
    try:
        cards = {card["id"]: card for card in json.loads(server.get("/v1/models"))["data"]}
    except Refusal:
        raise
    except ServerError as error:
        raise ServerError(f"{error}; start the server, or name it by --base-url or HOST and PORT") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{server.base_url}/v1/models is no list of models ({error!r})") from None
    if target.model not in cards:
        raise RunError(f"{server.base_url} serves {', '.join(cards) or 'nothing'}, not {target.model}; see --model")
    limit, wanted = cards[target.model].get("max_model_len"), target.recipe.expect.max_model_len
    if limit != wanted:
        raise RunError(f"max_model_len of {target.model} is {limit}, the recipe expects {wanted}; serve that recipe")
    return limit
