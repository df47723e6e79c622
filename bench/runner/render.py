"""Writes tables into documents, between markers, and charts into bench/plots; or says what differs from that.

<!-- bench:NAME -->
... written here ...
<!-- /bench:NAME -->
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from . import lint, plots, tables
from .fault import BenchError, Finding
from .library import Library

_BLOCK = re.compile(r"^<!-- bench:([\w-]+) -->\n(.*?)^<!-- /bench:\1 -->$", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"^\s*<!-- /?bench:([\w-]+) -->\s*$", re.MULTILINE)


def wanted(library: Library) -> Iterator[tuple[Path, str | None]]:
    """(path below the checkout, its text as it should be or None where it should not be) of all that is rendered.

    Raises:
        BenchError: a result is not as its schema says or was edited, or a document has a marker that means nothing.
    """
    for result in library.every:
        for line in lint.unfit(result):
            raise BenchError(f"{result.path}: {line}")
    for path in documents(library):
        yield path, filled((library.root / path).read_text(), path, library)
    drawn = {plots.FOLDER / f"{name}.svg": chart.draw(library) for name, chart in plots.CHARTS.items()}
    yield from drawn.items()
    for path in sorted((library.root / plots.FOLDER).glob("*")):
        if (below := path.relative_to(library.root)) not in drawn:
            yield below, None


def documents(library: Library) -> list[Path]:
    """Markdown files of the checkout that hold a marker."""
    folders = [Path("."), *(Path(name) for name in ("bench", "demo", "docs", "validation"))]
    known = [path for folder in folders for path in library.tracked(folder, "*.md")]
    return [path for path in known if _MARKER.search((library.root / path).read_text())]


def filled(text: str, path: Path, library: Library) -> str:
    """A document with its blocks written anew.

    Raises:
        BenchError: a marker has no partner, or names no table.
    """

    def link(target: Path) -> str:
        return os.path.relpath(target, path.parent)

    def block(found: re.Match[str]) -> str:
        if (table := tables.TABLES.get(name := found[1])) is None:
            raise BenchError(f"{path}: there is no table {name!r}; known are {', '.join(tables.TABLES)}")
        lines = "\n".join(table(library, link))
        return f"<!-- bench:{name} -->\n{lines}\n<!-- /bench:{name} -->"

    if lone := _MARKER.search(_BLOCK.sub("", text)):
        raise BenchError(
            f"{path}: the marker of {lone[1]!r} has no partner; a block ends with <!-- /bench:{lone[1]} -->"
        )
    return _BLOCK.sub(block, text)


def write(library: Library) -> list[Path]:
    """Write what differs; the paths that were written or removed."""
    changed = []
    for path, text in wanted(library):
        file = library.root / path
        if text == (file.read_text() if file.is_file() else None):
            continue
        changed.append(path)
        if text is None:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return changed


def check(library: Library) -> list[Finding]:
    """What :func:`write` would change."""
    found = []
    for path, text in wanted(library):
        file = library.root / path
        now = file.read_text() if file.is_file() else None
        if text == now:
            continue
        if text is None:
            what = "is drawn from no result; remove it"
        elif now is None:
            what = "is missing; run `python bench/cli.py render`"
        else:
            what = f"{_where(now, text)} is not what the results give; run `python bench/cli.py render`"
        found.append(Finding(str(path), what))
    return found


def _where(now: str, text: str) -> str:
    """The first line that differs."""
    pairs = zip(now.splitlines(), text.splitlines(), strict=False)
    line = next((number for number, (one, other) in enumerate(pairs, 1) if one != other), len(now.splitlines()) + 1)
    return f"line {line}"
