"""The tables that documents show, in Markdown, each from committed result files alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import facts

from moet_w2.planner.reported import PROFILES
from moet_w2.recipe import Recipe

from . import boxes, plots, served
from .library import RESULTS, Library, Result
from .served import Served

NOT_MEASURED, _UNKNOWN = "Not measured yet.", "not measured"
_SEED_LOGGER = {"300k": 24_998.6, "512k": 49_974.3}
"""Prompt tokens a second as the original system's server logged them; planner/reported.py holds its other figures."""

Link = Callable[[Path], str]
"""How the document at hand writes a path of the checkout."""
Table = Callable[[Library, Link], list[str]]


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
    names = [name for name in columns[0] if not all(column[name] in ("", _UNKNOWN) for column in columns)]
    return [*grid("", [column[""] for column in columns]), *_rows(names[1:] if names[0] == "" else names, columns)]


def _rows(names: Sequence[str], columns: Sequence[dict[str, str]]) -> list[str]:
    return [row([name, *(column.get(name, "") for column in columns)]) for name in names]


def peers(library: Library, link: Link) -> list[str]:
    """Whole steps of a few layers of real widths: stock, ours and llama.cpp, resident and in host memory."""
    lines: list[str] = []
    for result in library.of("decode_rate"):
        layers, machine = result.document["layers"], _machine(result, library)
        beside = [
            other
            for other in library.of("llama_rate")
            if other.document["layers"] == layers and _machine(other, library) == machine
        ]
        lines += [*_peers(result, beside, f"{layers} layers, {machine}", link), ""]
    return lines[:-1] if lines else [NOT_MEASURED]


def _peers(result: Result, beside: list[Result], words: str, link: Link) -> list[str]:
    sides: dict[str, Any] = dict(result.document["sides"])
    for other in beside:
        sides |= other.document["sides"]
    stock = sides["stock"]["requests"]
    names = [name for count in stock for name in (f"{count}x, tokens/s", f"{count}x, over stock")]
    files = ", ".join(f"[{one.path.name}]({link(one.path)})" for one in (result, *beside))
    lines = [f"{words}: {files}", "", *grid("experts", names)]
    for name, side in sides.items():
        cells = []
        for count, base in stock.items():
            found = side["requests"].get(count, {}).get("decode_tokens_per_s")
            cells += ["", ""] if found is None else [f"{found:,.1f}", f"{found / base['decode_tokens_per_s']:.2f}"]
        lines.append(row([_side(name), *cells]))
    missing = [
        what
        for what, there in {
            "stock with its experts offloaded": any("offloaded" in name for name in sides),
            "ours mapped": any(name.endswith("-mapped") and name != "ours-0-mapped" for name in sides),
            "llama.cpp": bool(beside),
        }.items()
        if not there
    ]
    return lines if not missing else [*lines, "", f"{', '.join(missing)}: {NOT_MEASURED.lower()}"]


def startup(library: Library, link: Link) -> list[str]:
    """Seconds of a start by phase."""
    found = served.all_of(library.of("serving"))
    if not found:
        return [NOT_MEASURED]
    starts = [dict(one.start()) for one in found]
    lines = grid("seconds", [f"[{one.name}]({link(one.result.path)})" for one in found])
    for name in dict.fromkeys(name for start in starts for name in start):
        lines.append(row([name, *(number(start.get(name), ".1f") for start in starts)]))
    return [*lines, row(["ready", *(number(one.document["ready_seconds"], ".1f") for one in found)])]


def loads(library: Library, link: Link) -> list[str]:
    """What vllm bench serve found of a served configuration: many requests, through a tokenizer."""
    found = library.of("load")
    if not found:
        return [NOT_MEASURED]
    heads = ["machine", "requests", "at once", "prompt tokens, all", "output tokens/s"]
    lines = grid("configuration", [*heads, "TTFT p99, ms", "TPOT median, ms"])
    for result in found:
        given, counts, times = result.document, result.document["counts"], result.document["client_milliseconds"]
        cells = [f"[{given['configuration']}]({link(result.path)})", _machine(result, library)]
        cells += [str(counts["completed"]), str(given["asked"]["concurrency"]), f"{counts['total_input_tokens']:,}"]
        cells += [number(given["client"]["output_throughput"]), number(times["ttft"]["p99"], ",.0f")]
        lines.append(row([*cells, number(times["tpot"]["median"])]))
    return lines


def results(library: Library, link: Link) -> list[str]:
    """Every result file: what it measures, where, of which commit, and whether it still is as it was written."""
    lines = grid("result", ["of", "machine", "commit", "tree", "digest"])
    for result in library.results:
        given, document = result.document["provenance"], result.document
        script = next((word for word in given["command"].split() if word.endswith(".py")), given["command"])
        tree = "uncommitted changes" if given["dirty"] else "clean"
        words = [f"[{result.path.name}]({link(result.path)})", f"`{script}`"]
        words += [_machine(result, library), f"`{given['commit'][:10]}`", tree]
        fits = document.get(facts.DIGEST) == facts.digest(document)
        lines.append(row([*words, "none" if facts.DIGEST not in document else "fits" if fits else "does not fit"]))
    return lines


def machines(library: Library, link: Link) -> list[str]:
    """Every box with its limits and what was measured on it."""
    lines = grid("box", ["GPU", "link", "host", "measured, GB/s"])
    for box in library.boxes.values():
        gpu = f"{box.gpu.count} {box.gpu.name}, {box.gpu.memory_gib:g} GiB" if box.gpu else "none"
        bus = f"PCIe {box.link.generation} x{box.link.lanes}" if box.link else ""
        host = f"{f'{box.host.cores} cores, ' if box.host.cores else ''}{box.host.memory_gib:g} GiB"
        values = {key: boxes.resolve(reference, library.root / RESULTS) for key, reference in box.measured.items()}
        said = [f"{key.removesuffix('_gb_per_s').replace('_', ' ')} {value:,.1f}" for key, value in values.items()]
        lines.append(row([box.name, gpu, bus, host, ", ".join(said) or "nothing"]))
    return lines


def recipes(library: Library, link: Link) -> list[str]:
    """Every recipe and the box that it is for."""
    lines = grid("recipe", ["context, tokens", "mapped layers", "what", "boxes"])
    for name, recipe in library.recipes.items():
        if not isinstance(recipe, Recipe):
            continue
        where = ", ".join(box.name for box in library.boxes.values() if name in box.recipes)
        path = Path("bench") / "recipes" / f"{name}.yaml"
        words = [f"{recipe.expect.max_model_len:,}", str(len(recipe.w2.mapped_layers)), recipe.description, where]
        lines.append(row([f"[{name}]({link(path)})", *words]))
    return lines


def charts(library: Library, link: Link) -> list[str]:
    """Every chart, or that its data are not there yet."""
    lines: list[str] = []
    for name, chart in plots.CHARTS.items():
        path = plots.FOLDER / f"{name}.svg"
        drawn = chart.draw(library) is not None
        lines += [f"![{chart.title}]({link(path)})" if drawn else f"{chart.title}: {NOT_MEASURED.lower()}", ""]
    return lines[:-1]


TABLES: dict[str, Table] = {
    "profiles": profiles,
    "demo": demo,
    "peers": peers,
    "startup": startup,
    "loads": loads,
    "results": results,
    "boxes": machines,
    "recipes": recipes,
    "charts": charts,
}
"""By the name that stands in a document's markers."""


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def grid(first: str, rest: Sequence[str]) -> list[str]:
    """The two lines that a table begins with."""
    return [row([first, *rest]), row(["---"] * (len(rest) + 1))]


def number(value: float | None, form: str = ",.1f") -> str:
    return _UNKNOWN if value is None else f"{value:{form}}"


def _machine(result: Result, library: Library) -> str:
    box = boxes.of(result.hardware, library.boxes)
    return box.name if box else result.hardware["gpu"] or result.hardware["cpu"]


def _side(name: str) -> str:
    who, _, how = name.partition("-")
    layers = how.partition("-")[0]
    experts = {"ours": "ours", "stock": "stock MXFP4", "llama": "llama.cpp, MXFP4"}[who]
    where = {"ours": "mapped", "stock": "offloaded by UVA", "llama": "computed by the CPU"}[who]
    return f"{experts}, in VRAM" if layers in ("", "0") else f"{experts}, {layers} layers {where}"


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
        "machine": _machine(one.result, library),
        "weights": "made up" if document["synthetic"] else "of the checkpoint",
        "mapped layers": str(one.mapped),
        "configured admission, tokens": f"{document['configured']['admission_tokens']:,}",
        "KV capacity as the server reports it, tokens": number(one.kv_tokens, ","),
        "longest prompt exercised, tokens": f"{document['exercised']['longest_prompt_tokens']:,}",
        "longest uncached prompt timed, tokens": number(client.get("prompt_tokens"), ","),
        "its time to first token, client, s": number(client.get("first_token_seconds")),
        "its prompt over that time, client, tokens/s": number(client.get("prompt_tokens_per_s"), ",.0f"),
        "prompt tokens/s in the server's log": number(max(logged, default=None)),
        "its prefix-cache hits, server": _share(prefill),
        "prefix-cache hits of a prompt sent again, server": _share(one.repeated()),
        "decode 1x, client, tokens/s": number(single and single["client"]["decode_tokens_per_s"]),
        "decode 4x, client, tokens/s": number(several and several["client"]["decode_tokens_per_s"]),
        "tokens a step and request, 1x, server": number(speculation.get("tokens_per_step"), ".2f"),
        "power while decoding 4x, NVML, W": number(several and served.gauge(several, "power_watts"), ".0f"),
        "over PCIe to the GPU meanwhile, NVML, GB/s": number(several and served.gauge(several, "pcie_to_gpu_gb_per_s")),
        "start to ready, s": number(document["ready_seconds"]),
        "KV capacity that the planner expects, tokens": _expected(planned.get("kv_tokens"), ",.0f"),
        "decode 1x that the planner expects, tokens/s": _expected(rates.get("1")),
        "decode 4x that the planner expects, tokens/s": _expected(rates.get("4")),
    }


def _share(phase: dict[str, Any] | None) -> str:
    rate = served.prefix_hit_rate(phase) if phase else None
    return _UNKNOWN if rate is None else f"{rate:.0%}"


def _expected(value: float | None, form: str = ",.1f") -> str:
    return "" if value is None else f"{value:{form}}"
