"""Documents as the checks of `make docs-check` see them: paragraphs, blocks of code, code spans, links, headings.

Not a Markdown parser: it knows the forms that these documents use. A block of code is fenced, or indented by four
spaces after an empty line; a list item goes on with less.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SHELL_LANGUAGES = ("sh", "bash", "shell", "console")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*([\w-]*)")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.*)$")
_RENDERED = re.compile(r"^<!-- (bench:[\w-]+) -->$.*?^<!-- /\1 -->$|<!--.*?-->", re.M | re.S)
"""What `bench/cli.py render` writes and checks between its two comments, and other comments."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a document."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """A block of code: its first line's number, its language where a fence names one, its text without indentation."""

    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Lines of prose or of a table that stand together.

    Attributes:
        line: number of the first one.
        lines: as they stand, without comments and what a tool renders.
    """

    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.lines).split())

    def line_of(self, offset: int) -> int:
        """The document's line in which a position of ``"\\n".join(lines)`` lies."""
        return self.line + "\n".join(self.lines)[:offset].count("\n")


class Document:
    """One document.

    Attributes:
        name: its path from the root, with slashes.
        text: all of it.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.blocks: list[Block] = []
        self.paragraphs: list[Paragraph] = []
        self._split()

    def fault(self, line: int, text: str) -> Fault:
        return Fault(self.name, line, text)

    @cached_property
    def spans(self) -> list[tuple[int, str]]:
        """(line, text) of every code span; one that goes over a line's end is joined."""
        return [
            (paragraph.line_of(match.start()), " ".join(match[1].split()))
            for paragraph in self.paragraphs
            for match in _SPAN.finditer("\n".join(paragraph.lines))
        ]

    @cached_property
    def links(self) -> list[tuple[int, str]]:
        """(line, target) of every link and picture."""
        return [
            (paragraph.line_of(match.start()), match[1])
            for paragraph in self.paragraphs
            for match in _LINK.finditer("\n".join(paragraph.lines))
        ]

    @cached_property
    def anchors(self) -> set[str]:
        """What `#...` may name: headings as GitHub turns them into anchors."""
        found = (_HEADING.match(line) for paragraph in self.paragraphs for line in paragraph.lines)
        return {slug(match[1]) for match in found if match}

    def section(self, heading: str) -> list[Paragraph]:
        """The paragraphs below a heading, up to the next one that is not below it; empty where it is not there."""
        depth, found = 0, []
        for paragraph in self.paragraphs:
            match = _HEADING.match(paragraph.lines[0])
            level = len(paragraph.lines[0].partition(" ")[0]) if match else 0
            if match and (match[1] == heading or (depth and level <= depth)):
                depth = level if match[1] == heading else 0
            elif depth:
                found.append(paragraph)
        return found

    def _split(self) -> None:
        """Fill blocks and paragraphs. A heading is a paragraph of its own."""
        lines, gathered, start = _RENDERED.sub(_blank, self.text).splitlines(), [], 0
        index = 0

        def flush() -> None:
            nonlocal gathered
            if gathered:
                self.paragraphs.append(Paragraph(start, tuple(gathered)))
            gathered = []

        while index < len(lines):
            line, number = lines[index], index + 1
            fence = _FENCE.match(line)
            if fence:
                flush()
                end = next((i for i in range(index + 1, len(lines)) if lines[i].strip() == fence[1]), len(lines))
                self.blocks.append(Block(number + 1, fence[2], "\n".join(lines[index + 1 : end])))
                index = end + 1
            elif line.startswith("    ") and not gathered:
                end = index
                while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                    end += 1
                body = "\n".join(each[4:] for each in lines[index:end])
                self.blocks.append(Block(number, "", body.rstrip()))
                index = end
            else:
                heading = _HEADING.match(line)
                if heading or not line.strip():
                    flush()
                if line.strip():
                    start = start if gathered else number
                    gathered.append(line)
                if heading:
                    flush()
                index += 1
        flush()


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def slug(heading: str) -> str:
    """GitHub's anchor of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def tracked(root: Path = ROOT) -> tuple[str, ...]:
    """Paths of the files that git tracks, or would track: a clone has these and no others."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(sorted({name for name in done.stdout.split("\0") if name and (root / name).exists()}))


@cache
def here() -> tuple[str, ...]:
    """:func:`tracked` of this tree, asked once."""
    return tracked()


def documents(root: Path = ROOT) -> list[Document]:
    """Every document of the tree."""
    names = here() if root == ROOT else tracked(root)
    return [Document(name, (root / name).read_text(encoding="utf-8")) for name in names if name.endswith(".md")]


@cache
def sources(tests: bool = False) -> str:
    """The text of everything that is no document and no data: where names of options and variables must stand.

    Args:
        tests: the tests instead, which hold mistakes on purpose.
    """
    kinds = (".py", ".sh", ".yaml", ".yml", ".toml", ".cu", ".cuh", ".service", ".env", ".patch", ".nix", ".ini")
    names = [name for name in here() if name.endswith(kinds) or name in ("Makefile", ".ci/run", "Containerfile")]
    names = [name for name in names if ("/tests/" in name) == tests]
    return "\n".join((ROOT / name).read_text(encoding="utf-8", errors="replace") for name in names)
