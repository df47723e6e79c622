"""Starts a server from a recipe, watches it, reads its log, and stops it: what bench/serving.py measures with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from moet_w2 import audit_ranks

_THROUGHPUT = re.compile(r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s")
_KV_TOKENS = re.compile(r"[CG]PU KV cache size: ([\d,]+) tokens")
_KV_MEMORY = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_PREFILL = re.compile(r"(prefill: .*)$", re.MULTILINE)
_ACCEPTANCE = re.compile(r"Mean acceptance length: ([\d.]+)")


class Server:
    """One server process and everything that it starts.

    Attributes:
        direct: what the launcher said where it refused and the rendered command was run without it, else None.
        log: the file that receives its output.
    """

    def __init__(
        self,
        moet: list[str],
        recipe: Path,
        environ: dict[str, str],
        log: Path,
        root: Path,
        leave_out: Collection[str] | None = None,
    ) -> None:
        """Start it. Nothing is waited for.

        Args:
            moet: the ``moet`` command.
            recipe: what to serve.
            environ: environment of the launcher.
            log: overwritten.
            root: where the recipe's relative paths start.
            leave_out: not None: run the rendered command itself, without these variables of it.
        """
        self.moet, self.recipe, self.environ, self.log, self.root = moet, recipe, environ, log, root
        self.direct: str | None = None
        self.started = time.perf_counter()
        log.write_bytes(b"")
        if leave_out is None:
            self._start([*moet, "serve", "--recipe", str(recipe), "--root", str(root)], environ)
        else:
            self.direct = "not asked"
            self._start_directly(leave_out)

    def wait_until_ready(self, healthy: Callable[[], bool], seconds: float) -> float:
        """Seconds from the start until the server says that it is ready.

        A launcher that refuses this machine (exit status 2) is noted, and what it would have run is run without it.

        Raises:
            RuntimeError: the server ended.
            TimeoutError: it took longer than ``seconds``.
        """
        while not healthy():
            status = self.process.poll()
            if status == 2 and self.direct is None:
                self.direct = self.text()[-4000:]
                self._start_directly()
            elif status is not None:
                raise RuntimeError(f"the server ended with status {status}: {self.text()[-3000:]}")
            elif time.perf_counter() - self.started > seconds:
                raise TimeoutError(f"not ready after {seconds:.0f} s: {self.text()[-1500:]}")
            time.sleep(0.2)
        return time.perf_counter() - self.started

    def stop(self, seconds: float = 60.0) -> float | None:
        """Ask it to end and wait until no process of it is left; those that stay are killed.

        Returns:
            seconds that it took, or None where it had to be killed.
        """
        began = time.perf_counter()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        while members(self.process.pid):
            self.process.poll()  # reaps it
            if time.perf_counter() - began > seconds:
                try:
                    os.killpg(self.process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    break  # the last of them has just ended
                while members(self.process.pid):
                    self.process.poll()
                    time.sleep(0.02)
                return None
            time.sleep(0.02)
        self.process.wait()
        return time.perf_counter() - began

    def text(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")

    def _start(self, command: list[str], environ: dict[str, str]) -> None:
        with self.log.open("ab") as log:
            # A session of its own: its processes are told apart and can be ended by it.
            self.process = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, cwd=self.root, start_new_session=True
            )

    def _start_directly(self, leave_out: Collection[str] = ()) -> None:
        ask = [*self.moet, "serve", "--recipe", str(self.recipe), "--root", str(self.root)]
        ask += ["--dry-run", "--print", "json"]
        done = subprocess.run(ask, env=self.environ, cwd=self.root, capture_output=True, text=True, check=True)
        document = json.loads(done.stdout)
        if document["audit_path"]:  # what the launcher would have prepared
            Path(document["audit_path"]).parent.mkdir(parents=True, exist_ok=True)
            audit_ranks.remove(Path(document["audit_path"]))
        rendered = {name: value for name, value in document["environment"].items() if name not in leave_out}
        self._start(document["argv"], self.environ | rendered)


def members(session: int) -> list[int]:
    """Processes of a session that are not yet gone; zombies are."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def logged(text: str) -> dict[str, Any]:
    """What the server's own logger said: its rates are averages over ten seconds, not a client's."""
    rates = [(float(prompt), float(generation)) for prompt, generation in _THROUGHPUT.findall(text)]
    return {
        "prompt_tokens_per_s": [prompt for prompt, _ in rates],
        "generation_tokens_per_s": [generation for _, generation in rates],
        "prefill": _PREFILL.findall(text)[-40:],
        "mean_acceptance_length": [float(value) for value in _ACCEPTANCE.findall(text)],
    }


def kv_cache(text: str) -> dict[str, Any]:
    """The size of the KV cache as vLLM's log reports it."""
    tokens, memory = _KV_TOKENS.search(text), _KV_MEMORY.search(text)
    return {
        "kv_cache_tokens": int(tokens[1].replace(",", "")) if tokens else None,
        "kv_cache_gib": float(memory[1]) if memory else None,
    }


def moet_command() -> list[str]:
    """The ``moet`` beside this interpreter, or the module where there is none."""
    beside = Path(sys.executable).with_name("moet")
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "moet_w2.cli"]
