"""Progress of long work: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

logger = logging.getLogger("vllm.moet_w2.cache")

LOG_SECONDS = 5.0


class Progress:
    """Counts bytes from several threads; use as a context."""

    def __init__(
        self,
        what: str,
        layers: int,
        nbytes: int,
        terminal: TextIO,
        say: Callable[[str], None] = logger.info,
    ) -> None:
        """Args: what: names the work; layers, nbytes: all of it; terminal: for a bar, if it is one; say: for lines."""
        self.what, self.layers, self.nbytes, self.done, self.say = what, layers, nbytes, 0, say
        self._lock = threading.Lock()
        self._start = self._logged = time.monotonic()
        self._bar: Any = None
        if nbytes and terminal.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=nbytes, desc=what, unit="B", unit_scale=True, unit_divisor=1024, file=terminal)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self.nbytes:
            self.say(self.line())

    def add(self, nbytes: int) -> None:
        """``nbytes`` more are done."""
        with self._lock:
            self.done += nbytes
            if self._bar is not None:
                self._bar.update(nbytes)
            elif time.monotonic() - self._logged >= LOG_SECONDS:
                self._logged = time.monotonic()
                self.say(self.line())

    def line(self) -> str:
        """Layers, GiB, GiB/s and seconds left."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = self.done / seconds
        left = (self.nbytes - self.done) / rate if rate else float("inf")
        return (
            f"{self.what}: {self.done / 2**30:.2f} of {self.nbytes / 2**30:.2f} GiB ({self.layers} layers), "
            f"{rate / 2**30:.2f} GiB/s, {left:.0f} s left"
        )
