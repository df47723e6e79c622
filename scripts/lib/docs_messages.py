"""Error messages that a document quotes stand in the code, word for word.

In the sections named below, each row of the table begins with messages as code spans; `...` stands for what the
program fills in. A message is looked for among the string literals of this tree, whose own gaps match anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import docs_links
import docs_source
from docs_source import ROOT, Document, Fault

SECTIONS = {"BUILD-AND-RUN.md": "Troubleshooting by message"}
"""Document -> the heading whose tables quote messages."""
VLLM = {
    "Engine core initialization failed": ("v1", "engine", "utils.py"),
}
"""Messages of vLLM's own, with the file that has them."""
_CODE = ("runtime_ext/src/moet_w2/", "scripts/", "validation/", "patch/")
_SPAN = re.compile(r"`([^`]+)`")
_GAP = "\0"


def faults(document: Document) -> Iterator[Fault]:
    """Messages that nothing in the code says."""
    heading = SECTIONS.get(document.name)
    if heading is None:
        return
    quoted = list(messages(document, heading))
    if not quoted:
        yield document.fault(1, f"no messages are quoted below the heading {heading!r}")
    for line, message in quoted:
        if not said(message):
            yield document.fault(line, f"no code says `{message}`")


def messages(document: Document, heading: str) -> Iterator[tuple[int, str]]:
    """(line, message) of every code span in a first column."""
    for paragraph in document.section(heading):
        for number, row in enumerate(paragraph.lines, paragraph.line):
            if row.startswith("| ") and not row.startswith(("| ---", "| message")):
                yield from ((number, match[1]) for match in _SPAN.finditer(row.split(" | ")[0]))


def said(message: str) -> bool:
    """Whether one literal of the code holds the message's words in their order."""
    for start, file in VLLM.items():
        if message.startswith(start):
            return start in docs_links.vllm_text(*file)
    parts = [part.strip() for part in message.split("...") if part.strip()]
    return bool(parts) and any(_in_order(parts, literal) for literal in literals())


def _in_order(parts: list[str], literal: str) -> bool:
    at = 0
    for part in parts:
        found = literal.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


@cache
def literals() -> tuple[str, ...]:
    """Every string of the code, those of f-strings with a gap for each value, and every line of shell that ends it."""
    found: list[str] = []
    for name in docs_source.here():
        if not name.startswith(_CODE) or "/tests/" in name or "/docs_" in name:
            continue
        if name.endswith(".py"):
            found += _strings(ast.parse((ROOT / name).read_text(encoding="utf-8")))
        elif name.endswith(".sh"):
            found += re.findall(r'\b(?:die \d|note) "([^"]*)"', (ROOT / name).read_text(encoding="utf-8"))
    return tuple(found)


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else _GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
