"""The cache as one worker process sees it: decide once, read what may be read, publish what was built."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ..layer import W2Layer
from . import admin, layout
from .eligibility import Miss, judge
from .key import CacheKey
from .load import BATCH_LAYERS, WORKERS, Result, load
from .progress import Progress
from .publish import publish

logger = logging.getLogger("vllm.moet_w2.cache")


@dataclass
class Session:
    """One key's cache in use by this process.

    Attributes:
        root: the cache root.
        key: the key.
        workers, batch: see :func:`moet_w2.cache.load.load`.
        seconds: phase -> seconds, "eligibility" and "planes".
        misses: layer key -> why it was built from the checkpoint.
    """

    root: Path
    key: CacheKey
    workers: int = WORKERS
    batch: int = BATCH_LAYERS
    seconds: dict[str, float] = field(default_factory=dict)
    misses: dict[int, Miss] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._in_use = ExitStack()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="moet-publish")
        self._writes: list[Future[None]] = []
        self._writable = self._hold()

    def fill(self, layers: Iterable[W2Layer], withheld: Collection[int] = ()) -> None:
        """Read every layer that may be read and is not complete yet; the others stay empty and are noted.

        Args:
            layers: the process's layers.
            withheld: keys that must come from the checkpoint all the same, because more than planes is needed.
        """
        wanted = {layer.key: layer for layer in layers if not layer.complete}
        start = time.perf_counter()
        verdicts = judge(self.root, self.key, wanted)
        self._spent("eligibility", start)
        self.misses |= {key: miss for key, miss in verdicts.items() if miss is not None}
        readable = [wanted[key] for key, miss in verdicts.items() if miss is None and key not in withheld]
        if withheld:
            logger.info("moet cache: layers are built from the checkpoint for their FP4 codes: %s", sorted(withheld))
        start = time.perf_counter()
        with Progress("planes", len(readable), len(readable) * self.key.geometry.nbytes, sys.stderr) as progress:
            results = load(self.root, self.key, readable, self.workers, self.batch, progress.add)
        self._spent("planes", start)
        self.misses |= {result.layer: result.miss for result in results if result.miss is not None}
        hits = [result for result in results if result.miss is None]
        logger.info(
            "moet cache %s: %d of %d layers read%s",
            layout.folder(self.root, self.key),
            len(hits),
            len(wanted),
            _ways(hits),
        )
        for miss, count in Counter(verdict for key, verdict in self.misses.items() if key in wanted).items():
            keys = [key for key in wanted if self.misses.get(key) == miss]
            logger.info("moet cache: %d layers are built from the checkpoint (%s): %s", count, miss, keys)

    def built(self, layer: W2Layer) -> None:
        """Publish a layer that was built from the checkpoint, in the background."""
        if self._writable and layer.key in self.misses:
            self._writes.append(self._writer.submit(self._publish, layer))

    def wait(self) -> None:
        """Until everything that was handed to :meth:`built` is on the disk, or has been given up."""
        for write in self._writes:
            write.result()

    def close(self) -> None:
        """Finish writing and let others prune the folder."""
        self._writer.shutdown()
        self._in_use.close()

    def _publish(self, layer: W2Layer) -> None:
        start = time.perf_counter()
        try:
            publish(self.root, self.key, layer)
        except OSError as error:
            # A server that cannot write its cache serves all the same; the next start is as slow as this one.
            logger.warning("moet cache: layer %d was not published: %s", layer.key, error)
        else:
            logger.info("moet cache: layer %d published in %.1f s", layer.key, time.perf_counter() - start)

    def _hold(self) -> bool:
        directory = layout.folder(self.root, self.key)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._in_use.enter_context(admin.hold(directory))
        except OSError as error:
            logger.warning("moet cache %s is read-only here (%s); what is built is not kept", self.root, error)
            return False
        return True

    def _spent(self, phase: str, start: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def _ways(hits: Iterable[Result]) -> str:
    """How files were read, as ", 3 cached, 1 direct"."""
    return "".join(f", {count} {way}" for way, count in Counter(result.way for result in hits).items())
