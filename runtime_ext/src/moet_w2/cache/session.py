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

from ..errors import CacheError
from ..layer import W2Layer
from . import admin, layout
from .eligibility import Miss, judge
from .key import CacheKey
from .load import BATCH_LAYERS, WORKERS, Result, load
from .progress import Progress
from .publish import publish

logger = logging.getLogger("vllm.moet_w2.cache")

_OTHERS = 3
"""Caches of other keys that are told about; the one used last comes first."""


@dataclass
class Session:
    """One key's cache in use by this process.

    Attributes:
        root: the cache root.
        key: the key.
        workers, batch: see :func:`moet_w2.cache.load.load`.
        seconds: phase -> seconds, "eligibility" and "planes".
        misses: layer key -> why it was built from the checkpoint.
        hits: keys of the layers that were read.
    """

    root: Path
    key: CacheKey
    workers: int = WORKERS
    batch: int = BATCH_LAYERS
    seconds: dict[str, float] = field(default_factory=dict)
    misses: dict[int, Miss] = field(default_factory=dict)
    hits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._in_use = ExitStack()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="moet-publish")
        self._writes: dict[int, Future[None]] = {}
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
        misses = {key: miss for key, miss in verdicts.items() if miss is not None}
        readable = [wanted[key] for key, miss in verdicts.items() if miss is None and key not in withheld]
        if withheld:
            logger.info("moet cache: layers are built from the checkpoint for their FP4 codes: %s", sorted(withheld))
        start = time.perf_counter()
        with Progress("planes", len(readable), len(readable) * self.key.geometry.nbytes, sys.stderr) as progress:
            results = load(self.root, self.key, readable, self.workers, self.batch, progress.add)
        self._spent("planes", start)
        hits = [result for result in results if result.miss is None]
        misses |= {result.layer: result.miss for result in results if result.miss is not None}
        self.misses |= misses
        self.hits += [result.layer for result in hits]
        folder = layout.folder(self.root, self.key)
        logger.info("moet cache %s: %d of %d layers read%s", folder, len(hits), len(wanted), _ways(hits))
        self._explain(misses, [result for result in results if result.detail])

    def built(self, layer: W2Layer) -> None:
        """Publish a layer that was built from the checkpoint, in the background; a second call does nothing."""
        if self._writable and layer.key in self.misses and layer.key not in self._writes:
            self._writes[layer.key] = self._writer.submit(self._publish, layer)

    def wait(self) -> None:
        """Until everything that was handed to :meth:`built` is on the disk, or has been given up."""
        for write in self._writes.values():
            write.result()

    def close(self) -> None:
        """Finish writing and let others prune the folder."""
        self._writer.shutdown()
        self._in_use.close()

    def _explain(self, misses: dict[int, Miss], failed: list[Result]) -> None:
        """Say of each layer that is built from the checkpoint why."""
        for miss, count in Counter(misses.values()).items():
            keys = [key for key, found in misses.items() if found is miss]
            logger.info("moet cache: %d layers are built from the checkpoint (%s): %s", count, miss, keys)
        for result in failed:
            logger.warning("moet cache: layer %d could not be read: %s", result.layer, result.detail)
        if misses and not self.hits:  # a first start, or a key that changed
            self._name_others()

    def _name_others(self) -> None:
        try:
            others = admin.other_keys(self.root, self.key)
        except CacheError as error:  # of a root that may be entered and not listed
            logger.info("moet cache: other keys are not told: %s", error)
            return
        for directory, differences in list(others.items())[:_OTHERS]:
            logger.info("moet cache: %s is of another key: %s", directory, ", ".join(differences))

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
        try:
            self._in_use.enter_context(admin.hold(layout.make_folder(self.root, self.key)))
        except OSError as error:
            logger.warning("moet cache %s cannot be written (%s); what is built is not kept", self.root, error)
            return False
        return True

    def _spent(self, phase: str, start: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


def _ways(hits: Iterable[Result]) -> str:
    """How files were read, as ", 3 cached, 1 direct"."""
    return "".join(f", {count} {way}" for way, count in Counter(result.way for result in hits).items())
