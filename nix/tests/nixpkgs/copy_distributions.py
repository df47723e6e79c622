"""Copies installed distributions, and what they require, into a folder: copy_distributions.py FOLDER NAME..."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def closure(names: list[str]) -> set[str]:
    """The names and everything that they require here, extras left out."""
    seen: set[str] = set()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in distribution(name).requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                names.append(requirement.name)
    return seen


def main(folder: str, *names: str) -> int:
    try:
        found = closure(list(names))
    except PackageNotFoundError as error:
        print(f"stand-in: this environment has no {error}; run `make setup`", file=sys.stderr)
        return 1
    for name in found:
        for file in distribution(name).files or []:
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            target = Path(folder) / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
