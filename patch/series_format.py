"""Reader of patch/series/: the header and the diff of one concern each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from build_errors import BuildError

REQUIRED = ("Target", "Why", "Upstream", "Remove-when", "Files")
_NAME = re.compile(r"\d\d-[a-z0-9-]+\.patch\Z")
_OLD = re.compile(r"^--- (?:a/)?(\S+)", re.MULTILINE)
_NEW = re.compile(r"^\+\+\+ (?:b/)?(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class SeriesPatch:
    """One file of the series. `files` are the paths it changes; `diff` is what `git apply` reads."""

    path: Path
    header: dict[str, str]
    files: tuple[str, ...]
    diff: str

    @property
    def name(self) -> str:
        return self.path.name


def read_series(folder: Path) -> list[SeriesPatch]:
    """All patches of the series in their order. Raises BuildError on a malformed or doubly numbered one."""
    patches = [parse(path) for path in sorted(folder.glob("*.patch"))]
    numbers = [patch.name[:2] for patch in patches]
    for number in numbers:
        if numbers.count(number) > 1:
            raise BuildError(f"{folder}: more than one patch has the number {number}")
    return patches


def parse(path: Path) -> SeriesPatch:
    """Read one series file. Its header must be complete and name exactly the files of its diff."""
    if not _NAME.match(path.name):
        raise BuildError(f"{path}: a series patch is called NN-name.patch (lower case, digits, dashes)")
    text = path.read_text(encoding="utf-8")
    head, found, rest = text.partition("\ndiff --git ")
    if not found:
        raise BuildError(f"{path}: has no line 'diff --git ...' below its header")
    header = _header(head, path)
    diff = "diff --git " + rest
    touched = _touched(diff)
    named = tuple(header["Files"].split())
    if sorted(named) != sorted(touched):
        raise BuildError(f"{path}: Files names {', '.join(named)}; the diff changes {', '.join(touched)}")
    return SeriesPatch(path, header, tuple(touched), diff)


def read_dropped(path: Path) -> dict[str, str]:
    """DROPPED.txt: path -> reason. A path without a reason raises BuildError."""
    dropped = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            if not reason.strip():
                raise BuildError(f"{path}: {name} has no reason beside it")
            dropped[name] = reason.strip()
    return dropped


def _header(head: str, path: Path) -> dict[str, str]:
    header: dict[str, str] = {}
    key = ""
    for line in head.splitlines():
        if line[:1] in (" ", "\t") and key:
            header[key] += " " + line.strip()
        elif line.strip():
            key, colon, value = line.partition(":")
            if not colon or key not in REQUIRED:
                raise BuildError(f"{path}: {line!r} is not a header line; keys are {', '.join(REQUIRED)}")
            if key in header:
                raise BuildError(f"{path}: {key} is given twice")
            header[key] = value.strip()
    missing = [key for key in REQUIRED if not header.get(key)]
    if missing:
        raise BuildError(f"{path}: the header lacks {', '.join(missing)}")
    return header


def _touched(diff: str) -> list[str]:
    pairs = zip(_OLD.findall(diff), _NEW.findall(diff), strict=True)
    paths = [old if new == "/dev/null" else new for old, new in pairs]
    return list(dict.fromkeys(paths))
