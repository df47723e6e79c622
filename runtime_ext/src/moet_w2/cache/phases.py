"""The phases of a start with their seconds, told at its end as a line of text and as JSON.

    eligibility   deciding which layers may be read
    planes        reading them
    target rest   what else the target model takes from the checkpoint
    draft rest    the same for the draft model
    publish       waiting until layers that were built are on the disk
    KV            measuring the memory that is left, and taking it for the KV cache
    graphs        warm-up, and capture where there are graphs

Loading is measured by moet_w2's own loader; the last three are calls of vLLM's worker, which are wrapped.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from .publish import write_atomically

logger = logging.getLogger("vllm.moet_w2.cache")

NAMES = ("eligibility", "planes", "target rest", "draft rest", "publish", "KV", "graphs")
WORKER_CALLS = {
    "determine_available_memory": "KV",
    "initialize_from_config": "KV",
    "compile_or_warm_up_model": "graphs",
}
"""Methods of vLLM's worker after loading, in their order, and the phase that each belongs to."""
_LAST = "compile_or_warm_up_model"
SUFFIX = ".startup.json"


class Phases:
    """One start of this process.

    Attributes:
        seconds: phase -> seconds; those that did not happen are absent.
        facts: what else the end tells.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.facts: dict[str, Any] = {}

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the seconds that the context lasts, also where it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - start)

    def line(self) -> str:
        """Every phase that happened, for a person."""
        parts = [f"{name} {self.seconds[name]:.3f} s" for name in NAMES if name in self.seconds]
        return f"moet start-up: {', '.join(parts)}; {since_process_start():.1f} s since the process began"

    def document(self) -> dict[str, Any]:
        """The same as JSON-serialisable data; a phase that did not happen is null."""
        return {
            "pid": os.getpid(),
            "seconds": {name: self.seconds.get(name) for name in NAMES},
            "since_process_start": since_process_start(),
            **self.facts,
        }

    def tell(self, beside: Path | None) -> None:
        """Log both forms, and write the JSON beside a file (``audit.json``: ``audit.startup.json``)."""
        document = json.dumps(self.document())
        logger.info("%s", self.line())
        logger.info("moet start-up as JSON: %s", document)
        if beside is not None:
            beside.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(beside.parent, beside.with_suffix(SUFFIX).name, f"{document}\n".encode())


@cache
def of_process() -> Phases:
    """The phases of this process's start."""
    return Phases()


def attach(worker: type, phases: Phases, settle: Callable[[], None], tell: Callable[[], None]) -> None:
    """Measure what a worker does after loading; once for a class.

    Args:
        worker: the class of vLLM's worker in use.
        phases: receives the seconds.
        settle: called before each of :data:`WORKER_CALLS`. What is still being written must be on the disk by then:
            on a GPU it copies from the device, which would break the capture of a graph.
        tell: called once, after the last.

    Raises:
        UnsupportedError: the worker lacks one of the methods.
    """
    if getattr(worker, "_moet_phases", False):
        return
    for name, phase in WORKER_CALLS.items():
        original = getattr(worker, name, None)
        if original is None:
            raise UnsupportedError(f"{worker.__qualname__}.{name} is not there; this vLLM is not the pinned one")
        setattr(worker, name, _measured(original, phase, phases, settle, tell if name == _LAST else None))
    worker._moet_phases = True  # type: ignore[attr-defined]


def _measured(
    original: Callable[..., Any],
    phase: str,
    phases: Phases,
    settle: Callable[[], None],
    tell: Callable[[], None] | None,
) -> Callable[..., Any]:
    told = False

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal told
        with phases.measure("publish"):
            settle()
        with phases.measure(phase):
            result = original(*args, **kwargs)
        if tell is not None and not told:
            told = True
            tell()
        return result

    return call


def since_process_start() -> float:
    """Seconds since this process began, by the kernel's clock."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
