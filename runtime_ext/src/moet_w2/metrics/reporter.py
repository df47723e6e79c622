"""The worker's thread that writes its snapshot every second. No step ever waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from .snapshot import Snapshot

logger = logging.getLogger("vllm.moet_w2.metrics")

EVERY_SECONDS = 1.0


class Reporter:
    """Writes snapshots until it is closed.

    A failure is logged once and never ends the server: the snapshot's age shows it.
    """

    def __init__(
        self,
        folder: Path,
        look: Callable[[], Snapshot],
        also: Callable[[], None] = lambda: None,
        every: float = EVERY_SECONDS,
    ) -> None:
        """Prepare; :meth:`start` begins.

        Args:
            folder: where snapshots go.
            look: makes one.
            also: called each time, after the snapshot.
            every: seconds between two.
        """
        self._folder, self._look, self._also, self._every = folder, look, also, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moet-metrics", daemon=True)
        self._failed = False

    def start(self) -> None:
        """Write the first snapshot now and the others in a thread."""
        self.once()
        self._thread.start()

    def once(self) -> None:
        """Write one snapshot."""
        try:
            self._look().write(self._folder)
            self._also()
        except Exception as error:
            if not self._failed:
                logger.warning("metrics: a snapshot was not written to %s: %s", self._folder, error, exc_info=True)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        """Stop, and write what there is at last."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self.once()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.once()
