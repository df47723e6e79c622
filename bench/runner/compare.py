"""Two result files of one benchmark side by side: figures that both have or one lacks, and what else differs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fault import BenchError
from .library import RESULTS, Library, Result

_RATE, _TIME = "_per_s", "seconds"
_SKIPPED = ("provenance", "audit", "metrics", "counters", "logger", "progress", "prediction", "engine", "samples")
"""Parts that are not figures of the benchmark itself."""
_TOLD = {"commit": str | None, "command": str, "dirty": bool, "hardware": dict, "versions": dict}
"""What :func:`differences` reads of a result's provenance, and its kinds."""


@dataclass(frozen=True)
class Row:
    """One figure of both: its path, its values, the second over the first."""

    name: str
    first: float
    second: float

    @property
    def ratio(self) -> float | None:
        return self.second / self.first if self.first else None

    @property
    def worse_by(self) -> float:
        """How much worse the second is, as a share: a rate by what it lost, a time by what it grew; else 0."""
        if self.ratio is None or not is_judged(self.name):
            return 0.0
        return 1 - self.ratio if _of_all(self.name).endswith(_RATE) else self.ratio - 1


def is_judged(name: str) -> bool:
    """Whether a figure is a rate or a time, of which one value is better than another."""
    return _of_all(name).endswith((_RATE, _TIME))


def _of_all(name: str) -> str:
    """A figure's name without its place in a list of several, such as one for each request."""
    return re.sub(r"(\.\d+)+$", "", name)


def read(path: Path, library: Library) -> Result:
    """A result file, wherever it lies.

    Raises:
        BenchError: it cannot be read, is not JSON, or no result; names those that the checkout has. Or it was edited.
    """
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise BenchError(f"{path} cannot be read ({error.strerror}); {_choice(library)}") from None
    except ValueError as error:
        raise BenchError(f"{path} is not JSON ({error}); {_choice(library)}") from None
    told = document.get("provenance") if isinstance(document, dict) else None
    if not isinstance(told, dict) or any(not isinstance(told.get(name), kind) for name, kind in _TOLD.items()):
        raise BenchError(f"{path} is no result: it has no whole provenance; {_choice(library)}")
    result = Result(path, document)
    if result.edited:
        raise BenchError(f"{path}: {result.edited}")
    return result


def _choice(library: Library) -> str:
    """The remedy: results of the checkout, by name."""
    found = [name.name for name in library.tracked(RESULTS) if name.suffix == ".json"]
    return f"name a result file; {RESULTS} has {', '.join(found) or 'none'}"


def rows(first: Result, second: Result) -> list[Row]:
    """Every number that both files have at the same place.

    Raises:
        BenchError: they are of different benchmarks, or share no figure.
    """
    if first.document.get("benchmark") != second.document.get("benchmark"):
        raise BenchError(f"{_kind(first)}, {_kind(second)}; compare two of one benchmark")
    mine, theirs = dict(figures(first.document)), dict(figures(second.document))
    found = [Row(name, value, theirs[name]) for name, value in mine.items() if name in theirs]
    if not found:
        raise BenchError(f"{first.path} and {second.path} share no figure; compare two of one benchmark")
    return found


def lacking(first: Result, second: Result) -> list[str]:
    """Figures of the first that the second has not."""
    theirs = dict(figures(second.document))
    return [name for name, _ in figures(first.document) if name not in theirs]


def _kind(result: Result) -> str:
    benchmark = result.document.get("benchmark")
    return f"{result.path} names no benchmark" if benchmark is None else f"{result.path} is of {benchmark!r}"


def figures(document: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """(path, number) of everything below a part of a result; what is NaN was not measured."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key not in _SKIPPED:
                yield from figures(value, f"{path}.{key}" if path else key)
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from figures(value, f"{path}.{index}")
    elif isinstance(document, int | float) and not isinstance(document, bool) and not math.isnan(document):
        yield path, float(document)


def differences(first: Result, second: Result) -> Iterator[str]:
    """What must be known before two results are called better or worse than each other."""
    mine, theirs = first.document["provenance"], second.document["provenance"]
    for key in ("commit", "command"):
        if mine[key] != theirs[key]:
            yield f"{key}: {mine[key]} | {theirs[key]}"
    for key in ("hardware", "versions"):
        for name in sorted(mine[key].keys() | theirs[key].keys()):
            values = mine[key].get(name), theirs[key].get(name)
            if values[0] != values[1]:
                yield f"{name}: {values[0]} | {values[1]}"
    for key in ("configuration", "recipe_sha256", "synthetic"):
        values = first.document.get(key), second.document.get(key)
        if values[0] != values[1]:
            yield f"{key}: {values[0]} | {values[1]}"
    for result, given in ((first, mine), (second, theirs)):
        if given["dirty"]:
            yield f"{result.path}: measured with uncommitted changes"


def text(found: list[Row], different: list[str], first: Result, second: Result) -> str:
    """Both for a person."""
    wide = max(len(row.name) for row in found)
    lines = [f"A  {first.path}", f"B  {second.path}", *(f"differs  {line}" for line in different), ""]
    lines.append(f"{'figure':<{wide}} {'A':>16} {'B':>16} {'B/A':>8}")
    for row in found:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        lines.append(f"{row.name:<{wide}} {row.first:>16,.6g} {row.second:>16,.6g} {ratio:>8}")
    for one, other, sides in ((first, second, "A, not B"), (second, first, "B, not A")):
        lines += [f"only in {sides}: {name}" for name in lacking(one, other)]
    return "\n".join(lines)
