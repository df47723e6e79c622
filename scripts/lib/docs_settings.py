"""Tables of settings are complete: what the code reads stands in them once, and nothing else does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs_source import Document, Fault

from moet_w2 import envs, serve

TABLES = {
    "setting": ("README.md", frozenset(envs.SETTINGS)),
    "variable": (
        "BUILD-AND-RUN.md",
        frozenset(re.findall(r"^  ([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*)", serve.OVERRIDES_HELP, re.M)),
    ),
}
"""Word at the head of a table's first column -> its document and the names that must be in it."""


def faults(documents: list[Document]) -> Iterator[Fault]:
    """What is missing from the tables, or has no place in them."""
    for head, (name, wanted) in TABLES.items():
        wanted = {each for names in wanted for each in names.split(", ")}
        for document in documents:
            if document.name == name:
                yield from _table(document, head, wanted)


def _table(document: Document, head: str, wanted: set[str]) -> Iterator[Fault]:
    rows = [
        (number, row)
        for paragraph in document.paragraphs
        if paragraph.lines[0].startswith(f"| {head} |")
        for number, row in enumerate(paragraph.lines[2:], paragraph.line + 2)
    ]
    if not rows:
        yield document.fault(1, f"there is no table whose first column is headed {head!r}")
        return
    seen: set[str] = set()
    for number, row in rows:
        for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row.split(" | ")[0]):
            if name not in wanted:
                yield document.fault(number, f"{name} is none of the names that belong into this table")
            if name in seen:
                yield document.fault(number, f"{name} stands in this table twice")
            seen.add(name)
    for name in sorted(wanted - seen):
        yield document.fault(rows[0][0], f"{name} is missing from this table")
