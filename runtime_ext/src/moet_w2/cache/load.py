"""Reading cached layers straight into their final place, several at a time.

A layer in host memory, mapped or plain, is read where it will stay; a layer in device memory goes through a small
ring of pinned buffers (:mod:`moet_w2.cache.staging`), which is given back when the load ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from ..layer import W2Layer
from . import layout, reads, staging
from .eligibility import Miss
from .key import CacheKey

WORKERS, BATCH_LAYERS = 4, 12
"""Layers read at a time, and at most handed out before the batch is waited for."""


@dataclass(frozen=True)
class Result:
    """What became of one layer.

    Attributes:
        layer: layer key.
        miss: None where its bytes are in place, else why not.
        way: how its file was read, None for a miss.
        detail: what the system said where reading failed, else "".
    """

    layer: int
    miss: Miss | None
    way: reads.Way | None = None
    detail: str = ""


def load(
    root: Path,
    key: CacheKey,
    layers: Sequence[W2Layer],
    workers: int = WORKERS,
    batch: int = BATCH_LAYERS,
    progress: reads.Progress = lambda nbytes: None,
) -> list[Result]:
    """Read layers that :func:`moet_w2.cache.eligibility.judge` passed.

    Args:
        root: the cache root.
        key: their key.
        layers: layers to fill; each is complete afterwards unless its result is a miss.
        workers: threads.
        batch: layers handed out at once.
        progress: told of every read, in bytes; called from the threads.
    """
    directory = layout.folder(root, key)
    results: list[Result] = []
    with staging.Rings() as rings, ThreadPoolExecutor(workers, thread_name_prefix="moet-cache") as threads:
        reader = _Reader(directory, key, rings, progress)
        for start in range(0, len(layers), batch):
            results += threads.map(reader.load, layers[start : start + batch])
    return results


class _Reader:
    """Reads layers on any thread; each thread has a ring of its own for the device."""

    def __init__(self, directory: Path, key: CacheKey, rings: staging.Rings, progress: reads.Progress) -> None:
        self.directory, self.key, self.rings, self.progress = directory, key, rings, progress

    def load(self, layer: W2Layer) -> Result:
        target = layer.storage if layer.host is None else layer.host.tensor()
        ring = None if target.is_cpu else self.rings.mine(target.device)
        # A ring's buffers are aligned whatever the layer's own address is.
        aligned = reads.alignable(0 if ring else target.data_ptr(), target.numel())
        try:
            with reads.Payload(layout.payload_path(self.directory, layer.key), aligned) as payload:
                if not layout.head_is(payload.head, self.key.digest, layer.key, layer.geometry.nbytes):
                    return Result(layer.key, Miss.BROKEN_HEAD)
                if ring is not None:
                    ring.fill(target, payload, self.progress)
                else:
                    _fill_host(target, payload, self.progress)
        except OSError as error:
            return Result(layer.key, Miss.READ_ERROR, detail=str(error))
        layer.adopt()
        return Result(layer.key, None, payload.way)


def _fill_host(target: torch.Tensor, payload: reads.Payload, progress: reads.Progress) -> None:
    view = memoryview(target.numpy())
    for start in range(0, len(view), reads.CHUNK):
        payload.read(view[start : start + reads.CHUNK], start, progress)
