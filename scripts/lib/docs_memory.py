"""Words on the account of the card's memory: what the planner makes of the profiles, and of the server that ran out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from moet_w2.planner import memory, predict, reported
from moet_w2.planner.machine import GIB, Machine
from moet_w2.recipe import Recipe

AS_SERVED = {"utilization": 0.98446, "logits_bytes": 512 << 20, "graphs_counted": False}
"""Of the 512k profile when a server of it ran out of memory: the original system's, and vLLM's default scores."""


def room(profiles: dict[str, Recipe]) -> list[str]:
    """What stays free while a prompt of the full length runs."""
    now = {name: _account(profile).spare / GIB for name, profile in profiles.items()}
    missing = -_account(profiles["512k"], **AS_SERVED).spare / GIB
    return [
        f"As that server was set, {missing:.2f} GiB were missing",
        f"{now['512k']:.2f} GiB stay free there and {now['300k']:.2f} GiB at "
        f"{profiles['300k'].expect.max_model_len:,} tokens",
    ]


def kv_caches(profiles: dict[str, Recipe]) -> list[str]:
    """KV tokens that the planner expects, and what vLLM counts beside everything that is computed."""
    now = {name: _account(profile).kv_tokens for name, profile in profiles.items()}
    model, settings, _ = predict.of_recipe(profiles["300k"])
    counted = sum(memory.runtime(model, replace(settings, logits_bytes=AS_SERVED["logits_bytes"])).values())
    return [
        f"vLLM 0.32 counted {counted / GIB:.2f} GiB there",
        f"older one {reported.RUNTIME_BYTES / GIB:.2f} GiB",
        f"{now['300k']:,} tokens in the 300k profile and {now['512k']:,} in the 512k profile",
    ]


def rates(result: dict[str, Any]) -> str:
    """How far the planner's rates are from servers'."""
    most = max(abs(row["off_by"]) for row in result["rows"])
    return f"Its rates are within {math.ceil(100 * most)}% of what these servers did"


def _account(profile: Recipe, **changed: Any) -> memory.Memory:
    model, settings, mapped = predict.of_recipe(profile)
    # Rates of link and memory have no part in it.
    card = Machine(int(profile.device.vram_gib * GIB), 1 << 40, 1000.0, 50.0, 12)
    return memory.account(model, card, replace(settings, **changed), mapped)
