"""Stop a server that was started as the leader of its own session, and everything that it started there.

The leader gets SIGTERM and time to shut down. What is left of its session after that is killed, and said.
Usage: stop_session.py PID SECONDS
Exit codes: 0 all ended by themselves, 1 something had to be killed, 2 PID leads no session of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.1


def members(session: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes of a session that still run: the dead that nobody has collected do not count."""
    found = []
    for stat in proc.glob("[0-9]*/stat"):
        try:
            state, _, _, sid = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it ended while the folder was read
        if int(sid) == session and state not in ("Z", "X"):
            found.append(int(stat.parent.name))
    return sorted(found)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def stop(leader: int, patience: float) -> list[int]:
    """End a session.

    Args:
        leader: its first process.
        patience: seconds that it may take after SIGTERM.

    Returns:
        the processes that had to be killed.
    """
    _send(leader, signal.SIGTERM)
    if ends(leader, patience):
        return []
    left = members(leader)
    for pid in left:
        _send(pid, signal.SIGKILL)
    ends(leader, patience)
    return left


def ends(session: int, limit: float) -> bool:
    """Whether every process of a session ends within ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while members(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def main() -> int:
    """Command line."""
    leader, patience = int(sys.argv[1]), float(sys.argv[2])
    running = members(leader)
    if not running:
        try:
            os.kill(leader, 0)
        except ProcessLookupError:
            return 0
        print(f"stop_session: process {leader} leads no session of its own; it is left alone", file=sys.stderr)
        return 2
    killed = stop(leader, patience)
    if killed:
        words = ", ".join(map(str, killed))
        print(f"stop_session: not gone {patience:g} s after SIGTERM, killed: {words}", file=sys.stderr)
    return 1 if killed else 0


if __name__ == "__main__":
    sys.exit(main())
