"""What every table is made of: lines of Markdown, and how a figure or a machine is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from . import boxes
from .library import Library, Result

NOT_MEASURED, UNKNOWN = "Not measured yet.", "not measured"

Link = Callable[[Path], str]
"""How the document at hand writes a path of the checkout."""
Table = Callable[[Library, Link], list[str]]


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def grid(first: str, rest: Sequence[str]) -> list[str]:
    """The two lines that a table begins with."""
    return [row([first, *rest]), row(["---"] * (len(rest) + 1))]


def number(value: float | None, form: str = ",.1f") -> str:
    return UNKNOWN if value is None else f"{value:{form}}"


def machine(result: Result, library: Library) -> str:
    box = boxes.of(result.hardware, library.boxes)
    return box.name if box else result.hardware["gpu"] or result.hardware["cpu"]
