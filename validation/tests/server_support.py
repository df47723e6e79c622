"""Real servers for tests."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import stop_session

from moet_w2 import recipe
from validation import ready
from validation.local import engine_lock, free_port

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "bench" / "recipes" / "demo-cpu.yaml"
SERVE = REPOSITORY / "scripts" / "serve-demo.sh"
READY_SECONDS = 300
CLEARED = (
    "HOST",
    "SERVED_MODEL_NAME",
    "W2_AUDIT_PATH",
    "CACHE_ROOT",
    "MOET_PLANES_CACHE_DIR",
    "MOET_STORE_DIR",
    "VLLM_API_KEY",
)


def clean_environment(**variables: str) -> dict[str, str]:
    """The environment without what a person may have set for a server of their own."""
    kept = {
        name: value for name, value in os.environ.items() if name not in CLEARED and not name.startswith("VLLM_MOE_W2")
    }
    return kept | variables


def mlocked() -> int:
    """Bytes of locked memory on this machine, by the kernel's own count."""
    return int(re.search(r"^Mlocked:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M).group(1)) * 1024


@dataclass
class Server:
    """A server started by scripts/serve-demo.sh.

    Attributes:
        environment: the environment that it was started with.
        run_dir: holds server.log and audit.json.
        port: where it listens.
        pid: leader of its session.
        mlocked_before: locked memory of the machine before it was started, in bytes.
        process: where it runs in the foreground, the process itself.
    """

    environment: dict[str, str]
    run_dir: Path
    port: int
    pid: int
    mlocked_before: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.run_dir / "server.log").read_text()

    def script(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of scripts/ with this server's environment."""
        command = [REPOSITORY / "scripts" / name, *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=400)


def unlocked(server: Server) -> bool:
    """Whether the memory that a server had locked is free again, within seconds.

    Other programs of the machine lock memory too; half of one mapped layer is the room left for them.
    """
    room = recipe.load(RECIPE).model.geometry.layer.nbytes // 2
    deadline = time.monotonic() + 10
    while mlocked() > server.mlocked_before + room:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@contextmanager
def foreground(run_dir: Path, **variables: str) -> Iterator[Server]:
    """The demo server as a child of this process, from ready on; whatever is left of it is stopped at the end."""
    port, before = free_port(), mlocked()
    environment = clean_environment(PORT=str(port), MOET_RUN_DIR=str(run_dir), **variables)
    with engine_lock(), (run_dir / "server.log").open("w") as log:
        process = subprocess.Popen(
            [SERVE], env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        server = Server(environment, run_dir, port, process.pid, before, process)
        try:
            ready.wait(server.url, READY_SECONDS, process.pid)
            yield server
        finally:
            stop_session.stop(process.pid, 30)
            process.wait()


@contextmanager
def background(run_dir: Path, **variables: str) -> Iterator[Server]:
    """The demo server as ``serve-demo.sh --background`` starts it; stopped at the end whatever happens."""
    port, before = free_port(), mlocked()
    environment = clean_environment(PORT=str(port), MOET_RUN_DIR=str(run_dir), **variables)
    command = [SERVE, "--background"]
    with engine_lock():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=READY_SECONDS + 60)
        assert done.returncode == 0, done.stdout + done.stderr
        server = Server(environment, run_dir, port, int((run_dir / "server.pid").read_text()), before)
        try:
            yield server
        finally:
            server.script("serve-demo.sh", "--stop")
