"""The tables that documents show, in Markdown, each from committed result files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import facts

from moet_w2.recipe import Recipe

from . import boxes, plots, served
from .library import RESULTS, Library, Result
from .markdown import NOT_MEASURED, Link, Table, grid, machine, number, row
from .profile_tables import demo, profiles


def peers(library: Library, link: Link) -> list[str]:
    """Whole steps of a few layers of real widths: stock, ours and llama.cpp, resident and in host memory."""
    lines: list[str] = []
    seen: set[str] = set()
    for result in library.of("decode_rate"):
        layers, where = result.document["layers"], machine(result, library)
        beside = [
            other
            for other in library.of("llama_rate")
            if other.document["layers"] == layers and machine(other, library) == where
        ]
        lines += [*_peers(result, beside, f"{layers} layers, {where}", link), ""]
        seen |= set(result.document["sides"]) | {name for other in beside for name in other.document["sides"]}
    if not lines:
        return [NOT_MEASURED]
    wanted = {
        "stock with its experts offloaded": any("offloaded" in name for name in seen),
        "ours mapped": any(name.endswith("-mapped") and name != "ours-0-mapped" for name in seen),
        "llama.cpp": any(name.startswith("llama") for name in seen),
    }
    missing = ", ".join(what for what, there in wanted.items() if not there)
    return [*lines, f"{missing}: {NOT_MEASURED.lower()}"] if missing else lines[:-1]


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
    return lines


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
        cells = [f"[{given['configuration']}]({link(result.path)})", machine(result, library)]
        cells += [str(counts["completed"]), str(given["asked"]["concurrency"]), f"{counts['total_input_tokens']:,}"]
        cells += [number(given["client"]["output_throughput"]), number(times["ttft"]["p99"], ",.0f")]
        lines.append(row([*cells, number(times["tpot"]["median"])]))
    return lines


def results(library: Library, link: Link) -> list[str]:
    """Every result file: what it measures, where, of which commit, and whether it still is as it was written."""
    lines = grid("result", ["of", "machine", "commit", "tree", "digest"])
    for result in library.every:
        given, document = result.document["provenance"], result.document
        script = next((word for word in given["command"].split() if word.endswith(".py")), given["command"])
        tree = "uncommitted changes" if given["dirty"] else "clean"
        words = [f"[{result.name}]({link(result.path)})", f"`{script}`"]
        words += [machine(result, library), f"`{given['commit'][:10]}`", tree]
        digest = "does not fit" if result.edited else "fits" if facts.DIGEST in document else "none"
        lines.append(row([*words, digest]))
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


def _side(name: str) -> str:
    who, _, how = name.partition("-")
    layers = how.partition("-")[0]
    experts = {"ours": "ours", "stock": "stock MXFP4", "llama": "llama.cpp, MXFP4"}[who]
    where = {"ours": "mapped", "stock": "offloaded by UVA", "llama": "computed by the CPU"}[who]
    return f"{experts}, in VRAM" if layers in ("", "0") else f"{experts}, {layers} layers {where}"
