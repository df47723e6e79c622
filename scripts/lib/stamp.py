"""Stamps: what a finished product was made from.

A stamp is written last, after everything it vouches for is in place. A product without a stamp, or with
a stamp of other inputs, is not finished and is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STAMP_NAME = ".moet-stamp.json"


def digest(parts: Iterable[tuple[str, Any]]) -> str:
    """Hash of named inputs. A value is a Path (its content), or anything that JSON can hold."""
    total = hashlib.sha256()
    for name, value in parts:
        data = value.read_bytes() if isinstance(value, Path) else json.dumps(value, sort_keys=True).encode()
        total.update(f"{name}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()


def tree_files(folder: Path) -> list[Path]:
    """Files that make up a Python project, in a fixed order, without what building leaves behind."""
    skipped = {"__pycache__", ".pytest_cache", ".hypothesis", "build", "dist", "tests"}
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part in skipped or part.endswith(".egg-info") for part in path.relative_to(folder).parts)
    )


def read(folder: Path) -> dict[str, str]:
    """The stamp of a folder; empty if it has none or a damaged one."""
    try:
        data = json.loads((folder / STAMP_NAME).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write(folder: Path, content: dict[str, str]) -> None:
    """Write the stamp in one atomic step."""
    temporary = folder / f"{STAMP_NAME}.new"
    with temporary.open("w") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / STAMP_NAME)
