"""The charts that documents show, each from committed result files alone; None where there is not enough to draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moet_w2.plot import Points, axis

from . import served, svg
from .library import Library

FOLDER = Path("bench") / "plots"
_SLOTS = "demo/results/correction-slots.json"


@dataclass(frozen=True)
class Chart:
    """One chart: its title, and what draws it as SVG text."""

    title: str
    draw: Callable[[Library], str | None]


def _decode(library: Library) -> str | None:
    """Of whole servers on a GPU, and of the few layers that stand beside stock."""
    series: dict[str, list[tuple[float, float]]] = {}
    for one in served.all_of(library.of("serving")):
        if one.result.hardware["gpu"]:
            for requests, _, phase in one.decodes():
                rate = phase["client"]["decode_tokens_per_s"]
                if rate and one.decode(requests) is phase:
                    series.setdefault(f"{requests}x", []).append((one.mapped, rate))
    return _lines("Decode rate against mapped layers", series, "mapped layers", "tokens/s, client")


def _kv(library: Library) -> str | None:
    series: dict[str, list[tuple[float, float]]] = {}
    for one in served.all_of(library.of("serving")):
        if one.result.hardware["gpu"] and one.kv_tokens:
            series.setdefault(one.result.hardware["gpu"], []).append((one.mapped, one.kv_tokens))
    return _lines("KV capacity against mapped layers", series, "mapped layers", "tokens, as the server reports them")


def _peers(library: Library) -> str | None:
    series: dict[str, list[tuple[float, float]]] = {}
    for result in library.of("decode_rate"):
        for name, side in result.document["sides"].items():
            words = name.split("-")
            layers = int(words[1]) if len(words) > 1 else 0
            for count, rates in side["requests"].items():
                series.setdefault(f"{words[0]} {count}x", []).append((layers, rates["decode_tokens_per_s"]))
    return _lines("Whole steps beside stock", series, "layers with experts in host memory", "tokens/s")


def _startup(library: Library) -> str | None:
    rows = {one.name: one.start() for one in served.all_of(library.of("serving"))}
    if not rows:
        return None
    longest = max(sum(length for _, length in phases) for phases in rows.values())
    return svg.waterfall("From start to ready", rows, axis("seconds", [longest], low=0.0))


def _hits(library: Library) -> str | None:
    document = library.named(_SLOTS)
    if document is None:
        return None
    points = sorted((point["slots"], point["hit_rate"]) for point in document["points"])
    y = axis("share of routings that found FP4", [], 0.0, 1.0)
    x = axis("correction slots", [slots for slots, _ in points], low=0.0)
    return svg.lines("Hit rate against slots, demo checkpoint", {"freq": points}, x, y)


def _lines(title: str, series: dict[str, list[tuple[float, float]]], across: str, up: str) -> str | None:
    """A chart of those series that have at least two points."""
    drawn: dict[str, Points] = {name: sorted(points) for name, points in series.items() if len(dict(points)) > 1}
    if not drawn:
        return None
    x = axis(across, [point[0] for points in drawn.values() for point in points], low=0.0)
    y = axis(up, [point[1] * 1.05 for points in drawn.values() for point in points], low=0.0)
    return svg.lines(title, drawn, x, y)


CHARTS = {
    "decode_mapped": Chart("Decode rate against mapped layers", _decode),
    "peers": Chart("Whole steps beside stock, against layers whose experts lie in host memory", _peers),
    "kv_mapped": Chart("KV capacity against mapped layers", _kv),
    "startup": Chart("From start to ready, by phase", _startup),
    "hit_rate_slots": Chart("Hit rate against correction slots, demo checkpoint", _hits),
}
"""By the name of its file below :data:`FOLDER`."""
