"""A real server for the tests of a file, and the lock that keeps two from running at once."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SERVE = REPOSITORY / "scripts" / "serve-demo.sh"
CLEARED = ("HOST", "SERVED_MODEL_NAME", "W2_AUDIT_PATH", "CACHE_ROOT", "VLLM_API_KEY")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: starts a real vLLM server or engine (tens of seconds)")


@contextmanager
def engine_lock() -> Iterator[None]:
    """Only one engine at a time on this machine's checkout: two cores do not carry two."""
    path = REPOSITORY / ".native" / "run" / "server.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without what a person may have set for a server of their own."""
    kept = {
        name: value for name, value in os.environ.items() if name not in CLEARED and not name.startswith("VLLM_MOE_W2")
    }
    return kept | variables


@dataclass
class Server:
    """A server started by scripts/serve-demo.sh --background."""

    environment: dict[str, str]
    run_dir: Path
    port: int
    ready_seconds: float
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.run_dir / "server.log").read_text()

    def script(self, name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of scripts/ with this server's environment."""
        return subprocess.run(
            [REPOSITORY / "scripts" / name, *words],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def stop(self) -> subprocess.CompletedProcess[str]:
        return self.script("serve-demo.sh", "--stop")


@contextmanager
def running(run_dir: Path, *words: str, **variables: str) -> Iterator[Server]:
    """Start the demo server; stops it at the end whatever happens."""
    port = free_port()
    environment = clean_environment(PORT=str(port), MOET_RUN_DIR=str(run_dir), **variables)
    with engine_lock():
        start = time.monotonic()
        done = subprocess.run(
            [SERVE, "--background", *words], env=environment, capture_output=True, text=True, timeout=400
        )
        seconds = time.monotonic() - start
        assert done.returncode == 0, done.stdout + done.stderr
        server = Server(environment, run_dir, port, seconds, int((run_dir / "server.pid").read_text()))
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo recipe, served for real, once for the tests of a file. Holds the engine lock until the file is done."""
    with running(tmp_path_factory.mktemp("demo")) as started:
        yield started


@pytest.fixture(scope="session")
def demo_checkpoint() -> Path:
    """The checkpoint that the demo recipe serves, or the one that MODEL_PATH names instead."""
    return Path(os.environ.get("MODEL_PATH") or REPOSITORY / "demo" / "checkpoint")
