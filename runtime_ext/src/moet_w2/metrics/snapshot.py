"""What one worker reports, as a file: written in one step, read by the API process at each scrape."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FORMAT = 1
FRESH_SECONDS = 10.0
"""A snapshot that is older belongs to a worker that hangs: it is written every second, also by an idle one."""

Value = float | Mapping[str, float]
"""A number, or one for each value of the metric's label."""


@dataclass(frozen=True)
class Snapshot:
    """One look at a worker.

    Attributes:
        rank, size: which of how many workers.
        pid: its process.
        started_ticks: when that process began, in the kernel's ticks since boot: a pid alone may be another's by now.
        written_unix: when this was written, Unix seconds.
        info: label -> text of ``moet_worker_info``.
        values: metric -> value, see :data:`moet_w2.metrics.table.OF_SNAPSHOT`.
        format: of the file.
    """

    rank: int
    size: int
    pid: int
    started_ticks: int
    written_unix: float
    info: Mapping[str, str]
    values: Mapping[str, Value] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Replace this rank's file.

        Raises:
            OSError: it could not be written; the old one still stands.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = folder / f".rank-{self.rank}.{self.pid}"
        temporary.write_text(json.dumps(vars(self)))
        temporary.replace(folder / f"rank-{self.rank}.json")

    def age(self, now: float | None = None) -> float:
        """Seconds since it was written."""
        return max(0.0, (time.time() if now is None else now) - self.written_unix)

    def up(self, now: float | None = None) -> bool:
        """Whether its worker lives and still reports."""
        return self.age(now) <= FRESH_SECONDS and process_ticks(self.pid) == self.started_ticks


def read(folder: Path | None) -> dict[int, Snapshot]:
    """Every snapshot of a folder by its rank. What is not a whole snapshot of this version is left out."""
    found = {}
    for path in sorted(folder.glob("rank-*.json")) if folder is not None else ():
        try:
            document = json.loads(path.read_text())
            snapshot = Snapshot(**document)
        except (OSError, ValueError, TypeError):
            continue
        if snapshot.format == FORMAT:
            found[snapshot.rank] = snapshot
    return found


def process_ticks(pid: int | None = None) -> int | None:
    """When a process (default: this one) began, in ticks since boot; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{os.getpid() if pid is None else pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
