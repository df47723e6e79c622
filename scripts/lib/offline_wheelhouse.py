"""The locked packages of a variant as files, each compared with the lock.

They are kept in .native/offline/wheelhouse-<variant>, so that a download that was cut short goes on: pip is asked for
a few packages at a time, and those that are there with the locked sha256 are not asked for again.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import fetch
import lockfile
import pins as pin_table
import torch_wheel
from build_errors import BuildError
from offline_parts import Note
from piprun import pip

AT_ONCE = 16
_ROW = re.compile(r"(?P<name>\S+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})\Z")


def rows(text: str, where: str) -> dict[str, str]:
    """sha256 -> the line of a lock. Raises BuildError for a line that is none of its kind."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        match = _ROW.match(line)
        if match is None:
            raise BuildError(f"{where}: not a line of a lock: {line!r}; make the lock again")
        found[match["sha256"]] = line
    return found


def gather(pins: pin_table.Pins, variant: str, folder: Path, note: Note) -> list[Path]:
    """Every locked wheel below `folder`, sorted by name. Raises BuildError if one cannot be had."""
    lock = lockfile.lock_path(variant)
    wanted = rows(lock.read_text(encoding="utf-8"), lock.name)
    folder.mkdir(parents=True, exist_ok=True)
    cache = fetch.cache_dir()
    pip_wheel = fetch.fetch(pins.artifact("tools.pip"), cache)
    torch_wheel.obtain(pins, variant, pip_wheel, cache)
    have = _present(folder, wanted)
    missing = [line for sha256, line in wanted.items() if sha256 not in have]
    note(f"{len(have)} of {len(wanted)} locked packages are in {folder.name}")
    for start in range(0, len(missing), AT_ONCE):
        _download(pip_wheel, folder, cache, missing[start : start + AT_ONCE])
        note(f"{len(have) + min(start + AT_ONCE, len(missing))} of {len(wanted)} locked packages")
    have = _present(folder, wanted)
    if absent := [line for sha256, line in wanted.items() if sha256 not in have]:
        name = absent[0].partition(" ")[0]
        raise BuildError(f"pip downloaded no file with the locked sha256 of {name}; run the same command again")
    return sorted(have.values())


def _present(folder: Path, wanted: dict[str, str]) -> dict[str, Path]:
    """The locked files that are there; whatever else pip or an older lock left is deleted."""
    found = {}
    for path in sorted(folder.iterdir()):
        sha256 = fetch.sha256_of(path)
        if sha256 in wanted and sha256 not in found:
            found[sha256] = path
        else:
            path.unlink()
    return found


def _download(pip_wheel: Path, folder: Path, cache: Path, lines: list[str]) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="moet-lock-", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--find-links", str(cache)]
        pip(pip_wheel, Path(sys.executable), ["download", *options, "--dest", str(folder), "-r", file.name])
