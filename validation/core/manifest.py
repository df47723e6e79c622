"""What was run on what: ``plan`` before the first request, ``outcome`` after the last, ``seal`` over both.

The seal is a digest, no signature: it catches an edit, not a forger. A replay also judges the records again and holds
the outcome to what they give.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from . import digest
from .errors import ReplayError
from .rundir import MANIFEST, RECORDS

SCHEMA, VERSION = "moet.validation", 1


def opened(plan: dict[str, Any]) -> dict[str, Any]:
    """A manifest before the first request."""
    return _sealed({"schema": SCHEMA, "schema_version": VERSION, "plan": plan})


def closed(document: dict[str, Any], folder: Path, outcome: dict[str, Any]) -> dict[str, Any]:
    """The same with its outcome and the digest of the records."""
    kept = {name: value for name, value in document.items() if name != "seal"}
    return _sealed(kept | {"records_sha256": digest.of_file(folder / RECORDS), "outcome": outcome})


def write(folder: Path, document: dict[str, Any]) -> None:
    """Write it whole or not at all."""
    temporary = folder / f".{MANIFEST}"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST)


def read(folder: Path) -> dict[str, Any]:
    """A manifest whose seal holds, and whose records are the ones it was closed over.

    Raises:
        ReplayError: it is missing, of another version, or it or the records were changed.
    """
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReplayError(f"{path} cannot be read ({error}); name a run's folder") from None
    if not isinstance(document, dict) or (document.get("schema"), document.get("schema_version")) != (SCHEMA, VERSION):
        raise ReplayError(f"{path} is no manifest of {SCHEMA} {VERSION}; record it again")
    if document != _sealed({name: value for name, value in document.items() if name != "seal"}):
        raise ReplayError(f"{path} was changed after it was sealed; record it again")
    if not (folder / RECORDS).is_file():
        raise ReplayError(f"{folder / RECORDS} is gone, and with it what was answered; put it back, or begin a new run")
    if "outcome" in document and document["records_sha256"] != digest.of_file(folder / RECORDS):
        raise ReplayError(f"{folder / RECORDS} is not what the manifest was sealed over; record it again")
    return document


def _sealed(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"seal": digest.of_json(document)}


def stamp() -> str:
    """Now, in UTC, as a name."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def folder_of(path: Path) -> Path:
    """A run's folder, named by itself or by one of its two files."""
    return path.parent if path.name in (MANIFEST, RECORDS) else path
