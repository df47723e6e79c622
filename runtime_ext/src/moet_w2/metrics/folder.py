"""Where the workers of one server leave their snapshots, known to every process of that server.

The API process names the folder before it starts the engine, in a variable that its children inherit. A process that
no multiprocessing parent started is the first of its server, whatever it inherits. The name cannot be guessed, the
worker makes the folder readable for its own user alone, and the first process removes it in the end.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

VARIABLE = "MOET_METRICS_FOLDER"


def announce() -> Path:
    """The folder of this process's server; the first process gives it its name."""
    known = os.environ.get(VARIABLE)
    if known and (multiprocessing.parent_process() is not None or known == _own):
        return Path(known)
    return _name()


def of_process() -> Path | None:
    """The folder, or None where no process has named one."""
    known = os.environ.get(VARIABLE)
    return Path(known) if known else None


_own: str | None = None


def _name() -> Path:
    global _own
    folder = Path(tempfile.gettempdir()) / f"moet-{os.getpid()}-{secrets.token_hex(8)}"
    os.environ[VARIABLE] = _own = str(folder)
    # After the reporter's end, whose priority is higher, where the engine runs in this very process.
    Finalize(None, _remove, (folder, os.getpid()), exitpriority=0)
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the handler, not the folder
        shutil.rmtree(folder, ignore_errors=True)
