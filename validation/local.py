"""What whoever starts a server or an engine on this machine needs: a port, and its turn."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def engine_lock() -> Iterator[None]:
    """Only one engine at a time on this machine's checkout: two cores do not carry two."""
    path = ROOT / ".native" / "run" / "server.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
