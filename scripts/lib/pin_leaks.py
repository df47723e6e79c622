"""Finds pinned versions, revisions and hashes that are written outside pins.toml.

    python3 scripts/lib/pin_leaks.py        exit 1 and one line for each leak

Looks at the files git knows. Generated files may hold them; GENERATED lists those. A value with fewer
than two dots (a Python minor version, `0.1`) is too common a number to be told apart and is not looked for.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pins as pin_table
from build_errors import FAILED, OK, BuildError

GENERATED = (
    "pins.toml",
    "requirements/*.lock",
    "patch/vllm-moet-v*.patch",
    "patch/FILES.txt",
    "patch/SOURCE.txt",
    # Evidence states the versions that it was measured with; nothing reads them back.
    "bench/results/*",
    "demo/results/*",
    "validation/fixtures/*",
    "kernels/MANIFEST.json",
    "kernels/cubins/*",
    "flake.lock",
    # Written by the checkpoint's maker; the format has a field for the library's version.
    "demo/checkpoint/*",
)


@dataclass(frozen=True)
class Leak:
    """One place that names a pinned value."""

    path: str
    line: int
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: names {self.value}, which is {self.key} of pins.toml"


def searchable(pins: pin_table.Pins) -> dict[str, str]:
    """value -> key of what is looked for. Local versions count by their public part as well."""
    found: dict[str, str] = {}
    for key, value in pins.versions():
        for form in (value, value.partition("+")[0]):
            if form.count(".") >= 2 or re.fullmatch(r"[0-9a-f]{40,64}", form):
                found.setdefault(form, key)
    return found


def pattern(values: list[str]) -> re.Pattern[str]:
    """Matches a value that is not part of a longer number or hash."""
    alternatives = "|".join(re.escape(value) for value in sorted(values, key=len, reverse=True))
    return re.compile(rf"(?<![0-9A-Za-z.])v?({alternatives})(?![0-9A-Za-z]|\.\d)")


def find(root: Path, pins: pin_table.Pins) -> list[Leak]:
    """Leaks in the files that git tracks, or would track, under `root`."""
    values = searchable(pins)
    expression = pattern(list(values))
    leaks = []
    for name in _tracked(root):
        if any(fnmatch.fnmatch(name, glob) for glob in GENERATED):
            continue
        if (root / name).is_symlink():  # what it points to is looked at by its own name
            continue
        data = (root / name).read_bytes() if (root / name).is_file() else b""
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            for match in expression.finditer(line):
                leaks.append(Leak(name, number, values[match[1]], match[1]))
    return leaks


def _tracked(root: Path) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"git ls-files failed in {root}: {done.stderr.strip()}")
    return sorted(name for name in done.stdout.split("\0") if name)


def main() -> int:
    try:
        leaks = find(pin_table.ROOT, pin_table.load())
    except BuildError as error:
        print(f"pins: error: {error}", file=sys.stderr)
        return error.code
    for leak in leaks:
        print(f"pins: error: {leak}", file=sys.stderr)
    if not leaks:
        print("pins: no pinned version outside pins.toml and generated files")
    return FAILED if leaks else OK


if __name__ == "__main__":
    sys.exit(main())
