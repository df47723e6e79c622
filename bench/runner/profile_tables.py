"""The tables of served configurations, beside the figures of the original system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moet_w2.planner.reported import PROFILES

from . import served
from .library import Library
from .markdown import NOT_MEASURED, UNKNOWN, Link, grid, machine, number, row
from .served import Served

_SEED_LOGGER = {"300k": 24_998.6, "512k": 49_974.3}
"""Prompt tokens a second as the original system's server logged them; planner/reported.py holds its other figures."""


def profiles(library: Library, link: Link) -> list[str]:
    """Configurations served on a GPU beside the figures of the original system."""
    found = [one for one in served.all_of(library.of("serving")) if one.result.hardware["gpu"]]
    columns = [_seed(profile) for profile in PROFILES] + [_profile(one, library, link) for one in found]
    names = list(columns[-1])
    if not found:
        names = list(columns[0])
    lines = grid(names[0], [column[names[0]] for column in columns])
    lines += _rows(names[1:], columns)
    return lines if found else [*lines, "", f"Ours: {NOT_MEASURED}"]


def demo(library: Library, link: Link) -> list[str]:
    """Configurations served on a CPU: of the tiny checkpoint, which is another model."""
    found = [one for one in served.all_of(library.of("serving")) if not one.result.hardware["gpu"]]
    columns = [_profile(one, library, link) for one in found]
    if not columns:
        return [NOT_MEASURED]
    names = [name for name in columns[0] if not all(column[name] in ("", UNKNOWN) for column in columns)]
    return [*grid("", [column[""] for column in columns]), *_rows(names[1:] if names[0] == "" else names, columns)]


def _rows(names: Sequence[str], columns: Sequence[dict[str, str]]) -> list[str]:
    told = [name for name in names if any(column.get(name) for column in columns)]
    return [row([name, *(column.get(name, "") for column in columns)]) for name in told]


def _seed(profile: Any) -> dict[str, str]:
    tokens, seconds = profile.prefill
    return {
        "": f"the original system, {profile.name}",
        "machine": "RTX PRO 6000",
        "weights": "DeepSeek-V4-Flash-0731",
        "mapped layers": str(len(profile.mapped)),
        "configured admission, tokens": f"{profile.settings.context:,}",
        "KV capacity as the server reports it, tokens": f"{profile.kv_tokens:,}",
        "longest prompt exercised, tokens": f"{tokens:,}",
        "longest uncached prompt timed, tokens": f"{tokens:,}",
        "its time to first token, client, s": f"{seconds:,.1f}",
        "its prompt over that time, client, tokens/s": f"{tokens / seconds:,.0f}",
        "prompt tokens/s in the server's log": f"{_SEED_LOGGER[profile.name]:,.1f}",
        "its prefix-cache hits, server": "0%",
        "decode 1x, client, tokens/s": f"{profile.decode[1]:,.1f}",
        "decode 4x, client, tokens/s": f"{profile.decode[4]:,.1f}",
    }


def _profile(one: Served, library: Library, link: Link) -> dict[str, str]:
    document, prefill = one.document, one.longest_prefill()
    single, several = one.decode(1), one.decode(4)
    speculation = (single or {}).get("speculation", {})
    planned = document.get("prediction", {})
    rates = planned.get("decode_tokens_per_s", {})
    client = prefill["client"] if prefill else {}
    logged = prefill["logger"]["prompt_tokens_per_s"] if prefill else []
    return {
        "": f"[{one.name}]({link(one.result.path)})",
        "machine": machine(one.result, library),
        "weights": "made up" if document["synthetic"] else "of the checkpoint",
        "mapped layers": str(one.mapped),
        "configured admission, tokens": f"{document['configured']['admission_tokens']:,}",
        "KV capacity as the server reports it, tokens": number(one.kv_tokens, ","),
        "longest prompt exercised, tokens": _exercised(one),
        "longest uncached prompt timed, tokens": number(client.get("prompt_tokens"), ","),
        "its time to first token, client, s": number(client.get("first_token_seconds")),
        "its prompt over that time, client, tokens/s": number(client.get("prompt_tokens_per_s"), ",.0f"),
        "prompt tokens/s in the server's log": number(max(logged, default=None)),
        "its prefix-cache hits, server": _share(prefill),
        "prefix-cache hits of a prompt sent again, server": _share(one.repeated()),
        "decode 1x, client, tokens/s": _decoded(one, 1),
        "decode 4x, client, tokens/s": _decoded(one, 4),
        "tokens a step and request, 1x, server": number(speculation.get("tokens_per_step"), ".2f"),
        "power while decoding 4x, NVML, W": number(several and served.gauge(several, "power_watts"), ".0f"),
        "over PCIe to the GPU meanwhile, NVML, GB/s": number(several and served.gauge(several, "pcie_to_gpu_gb_per_s")),
        "start to ready, s": number(document["ready_seconds"]),
        "card's memory held to, GiB": _expected(document.get("held", {}).get("to_gib"), "g"),
        "the server's part of it once ready, at most, nvidia-smi, GiB": _expected(one.own_gib(), ".2f"),
        "KV capacity that the planner of that commit expected, tokens": _expected(planned.get("kv_tokens"), ",.0f"),
        "decode 1x that the planner of that commit expected, tokens/s": _expected(rates.get("1")),
        "decode 4x that the planner of that commit expected, tokens/s": _expected(rates.get("4")),
    }


def _exercised(one: Served) -> str:
    longest, failed = f"{one.document['exercised']['longest_prompt_tokens']:,}", one.failed_prefill()
    return longest if failed is None else f"{longest}; failed at {failed:,}"


def _decoded(one: Served, requests: int) -> str:
    phase = one.decode(requests)
    if phase is None and one.failed_decode(requests):
        return "failed"
    return number(phase and phase["client"]["decode_tokens_per_s"])


def _share(phase: dict[str, Any] | None) -> str:
    rate = served.prefix_hit_rate(phase) if phase else None
    return UNKNOWN if rate is None else f"{rate:.0%}"


def _expected(value: float | None, form: str = ",.1f") -> str:
    return "" if value is None else f"{value:{form}}"
