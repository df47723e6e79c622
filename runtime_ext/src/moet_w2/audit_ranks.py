"""The audits of a server's ranks under tensor parallelism: one file each, judged together.

    audit.json           of rank 0, or of the only one: the path that was asked for
    audit.rank-1.json    beside it, of rank 1; and so on

Every rank holds the same layers in the same places, and the same share of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import audit
from .cache import phases
from .errors import AuditError

if TYPE_CHECKING:
    from .recipe import Recipe

_ALIKE = (
    "quantizer",
    "target_layers",
    "draft_layers",
    "configured_mapped_layers",
    "allocated_mapped_layers",
    "uncorrected_layers",
    "mapped_bytes",
    "w2_bytes",
)
"""Facts that must be the same on every rank."""


def place(path: Path, rank: int) -> Path:
    """File of a rank's audit.

    Args:
        path: file of rank 0.
        rank: whose.
    """
    return path.with_name(f"{path.stem}.rank-{rank}{path.suffix}") if rank else path


def remove(path: Path) -> None:
    """Take away what a server left there, of every rank, with the seconds of its start.

    Args:
        path: file of rank 0.

    Raises:
        AuditError: an audit's place holds what no server wrote; nothing is taken away.
        OSError: a file stands there that cannot be removed.
    """
    check_replaceable(path)
    seconds = (path.with_suffix(phases.SUFFIX), *_of_ranks(path, phases.SUFFIX))
    for left in (path, *_of_ranks(path, path.suffix), *seconds):
        left.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Refuse a place where a start would take away what is somebody else's. An empty file has nothing to lose.

    Args:
        path: file of rank 0.

    Raises:
        AuditError: what stands there is no file, no audit of whichever schema version, or cannot be read.
    """
    for left in (path, *_of_ranks(path, path.suffix)):
        if (fault := _fault(left)) is not None:
            raise AuditError(f"{left} {fault}, and a start would replace it; set W2_AUDIT_PATH to another file")


def _fault(file: Path) -> str | None:
    """Why what stands there is no server's to replace; None where it is, or where nothing stands."""
    try:
        if not file.exists():
            return None
        if file.is_file():  # a device or a pipe is not opened: it need not end
            text = file.read_bytes()
            if not text or json.loads(text).get("schema") == audit.SCHEMA_NAME:
                return None
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (ValueError, AttributeError, RecursionError):
        pass
    return "is no audit"


def _of_ranks(path: Path, suffix: str) -> list[Path]:
    """Files beside rank 0's that ranks after it have written, with this suffix."""
    named = re.compile(rf"{re.escape(path.stem)}\.rank-[0-9]+{re.escape(suffix)}")
    return [other for other in path.parent.glob("*") if named.fullmatch(other.name)]


def owner(path: Path) -> int | None:
    """Process of the server that wrote an audit, where that still runs.

    Args:
        path: file of rank 0.

    Returns:
        its process id, or None where there is no audit, or its server is gone.
    """
    try:
        pid = int(json.loads(path.read_text())["pid"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, TypeError, KeyError):
        return None
    # Numbers are given again to other programs.
    return pid if b"vllm" in command.lower() else None


def load(path: str | Path) -> list[dict[str, Any]]:
    """The audits of all ranks, in their order.

    Args:
        path: file of rank 0.

    Raises:
        AuditError: a file is missing, no audit of this schema version, or of another rank than its name says.
    """
    first = _load(Path(path), 0)
    return [first, *(_load(Path(path), rank) for rank in range(1, first["tensor_parallel"]["size"]))]


def check(documents: list[dict[str, Any]], recipe: Recipe) -> list[str]:
    """Judge all ranks by the recipe that served, and by each other.

    Args:
        documents: as :func:`load` returns them.
        recipe: the recipe.

    Returns:
        one line for each disagreement, with its rank where there are several; empty when every audit holds.
    """
    if len(documents) == 1:
        return audit.check(documents[0], recipe)
    problems = list(differences(documents))
    for rank, document in enumerate(documents):
        problems += [f"audit: rank {rank}: {line.removeprefix('audit: ')}" for line in audit.check(document, recipe)]
    return problems


def differences(documents: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each fact in which a rank is not as rank 0 is."""
    first = documents[0]
    for rank, other in enumerate(documents):
        if other["tensor_parallel"]["server"] != first["tensor_parallel"]["server"]:
            yield f"audit: rank {rank} is of another start than rank 0; remove the old files and start again"
        for name in _ALIKE:
            if other[name] != first[name]:
                yield f"audit: {name} is {other[name]} on rank {rank}, {first[name]} on rank 0"


def summary(documents: list[dict[str, Any]]) -> str:
    """All ranks for a person."""
    return "\n\n".join(audit.summary(document) for document in documents)


def _load(path: Path, rank: int) -> dict[str, Any]:
    document = audit.load(place(path, rank))
    found = document["tensor_parallel"]["rank"]
    if found != rank:
        raise AuditError(f"audit {place(path, rank)} is of rank {found}, not {rank}; give the file of rank 0")
    return document
