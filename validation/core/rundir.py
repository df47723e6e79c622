"""The folder of one run. A unit's records are on the disk before the next unit is asked, so a kill loses one unit.

    SUITE-CASES-20261130T225100Z/
        manifest.json    what is run on what; completed and sealed at the end
        records.jsonl    one line a unit: {"sha256": of the rest, "unit": id, "invocations": {id: record}}
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import digest
from .errors import ReplayError, RunError
from .talk import Record

MANIFEST, RECORDS = "manifest.json", "records.jsonl"


def create(parent: Path, name: str) -> Path:
    """Make a new folder below ``parent``; one that is there is never written to.

    Args:
        name: the dated name; ``-2``, ``-3``, ... is added where it is taken.

    Raises:
        RunError: the folder cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            (path / RECORDS).touch()
            return path
    except OSError as error:
        raise RunError(f"{parent} cannot be written ({error.strerror}); give another --output-dir") from None
    raise RunError(f"{parent} holds 999 runs of {name}; give another --output-dir")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """This process alone works on the run.

    Raises:
        RunError: another process does.
    """
    with (folder / RECORDS).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} is being run by another process; wait for it") from None
        yield


def append(folder: Path, unit: str, records: dict[str, Record]) -> None:
    """Put a unit's records on the disk."""
    entry = {"unit": unit, "invocations": {name: record.document() for name, record in records.items()}}
    line = json.dumps({"sha256": digest.of_json(entry), **entry}, ensure_ascii=False)
    with (folder / RECORDS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def mend(folder: Path) -> None:
    """Cut off a last line that a kill left unfinished."""
    path = folder / RECORDS
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def read(folder: Path) -> tuple[set[str], dict[str, Record]]:
    """Units that are done, and the record of each invocation.

    Raises:
        ReplayError: a line is damaged or was edited.
    """
    units: set[str] = set()
    records: dict[str, Record] = {}
    try:
        text = (folder / RECORDS).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"{folder / RECORDS} cannot be read ({error}); name a run's folder") from None
    # At LF alone: other ends of a line, such as U+2028, stand in a record as they came.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        entry = _entry(folder / RECORDS, number, line)
        units.add(entry["unit"])
        records |= {name: Record.of(document) for name, document in entry["invocations"].items()}
    return units, records


def _entry(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
        told = entry.pop("sha256")
    except (ValueError, KeyError, AttributeError):
        raise ReplayError(f"{path}, line {number} is no record; take the file as it was recorded") from None
    if digest.of_json(entry) != told:
        raise ReplayError(f"{path}, line {number} was changed after it was recorded; record it again")
    return entry
