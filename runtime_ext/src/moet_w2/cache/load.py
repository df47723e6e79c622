"""Reading cached layers straight into their final place, several at a time.

A layer in host memory, mapped or plain, is read where it will stay. A layer in device memory goes through a small
ring of pinned buffers, so that the disk and the copy engine work at once. Direct I/O is used where the filesystem
takes it and the destination is aligned: it spares the page cache, which at this size would only push out what the
machine needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..layer import W2Layer
from ..linux import PAGE
from . import layout
from .eligibility import Miss
from .key import CacheKey

WORKERS, BATCH_LAYERS = 4, 12
"""Layers read at a time, and at most handed out before the batch is waited for."""
_CHUNK = 16 << 20
_RING = 3


@dataclass(frozen=True)
class Result:
    """What became of one layer.

    Attributes:
        layer: layer key.
        miss: None where its bytes are in place, else why not.
        direct: whether direct I/O was used.
    """

    layer: int
    miss: Miss | None
    direct: bool = False


def load(
    root: Path,
    key: CacheKey,
    layers: Sequence[W2Layer],
    workers: int = WORKERS,
    batch: int = BATCH_LAYERS,
    progress: Callable[[int], None] = lambda nbytes: None,
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
    with ThreadPoolExecutor(workers, thread_name_prefix="moet-cache") as threads:
        for start in range(0, len(layers), batch):
            part = layers[start : start + batch]
            results += threads.map(lambda layer: _load_layer(directory, key, layer, progress), part)
    return results


def _load_layer(directory: Path, key: CacheKey, layer: W2Layer, progress: Callable[[int], None]) -> Result:
    path = layout.payload_path(directory, layer.key)
    target = layer.storage if layer.host is None else layer.host.tensor()
    try:
        with _opened(path, target) as (descriptor, direct):
            block = os.pread(descriptor, layout.HEAD, 0) if not direct else _read_head(path)
            if not layout.head_is(block, key.digest, layer.key, layer.geometry.nbytes):
                return Result(layer.key, Miss.BROKEN_HEAD)
            fill = _read_into_device if target.is_cuda else _read_into_host
            fill(descriptor, target, progress)
    except OSError:
        return Result(layer.key, Miss.READ_ERROR)
    layer.adopt()
    return Result(layer.key, None, direct)


@contextmanager
def _opened(path: Path, target: torch.Tensor) -> Iterator[tuple[int, bool]]:
    """Open for direct reads where they can work, else for buffered ones."""
    aligned = target.is_cuda or (target.data_ptr() % PAGE == 0 and target.numel() % PAGE == 0)
    flags, direct = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, aligned
    try:
        descriptor = os.open(path, flags | (os.O_DIRECT if direct else 0))
    except OSError:
        if not direct:
            raise
        direct = False  # a filesystem without direct I/O says so here
        descriptor = os.open(path, flags)
    try:
        yield descriptor, direct
    finally:
        os.close(descriptor)


def _read_head(path: Path) -> bytes:
    """The head block, buffered: a direct read wants an aligned buffer, which bytes are not."""
    with path.open("rb", buffering=0) as file:
        return file.read(layout.HEAD)


def _read_into_host(descriptor: int, target: torch.Tensor, progress: Callable[[int], None]) -> None:
    view = memoryview(target.numpy())
    for start in range(0, len(view), _CHUNK):
        read_exactly(descriptor, view[start : start + _CHUNK], layout.HEAD + start, progress)


def _read_into_device(descriptor: int, target: torch.Tensor, progress: Callable[[int], None]) -> None:
    stream = torch.cuda.Stream(target.device)
    ring = [torch.empty(_CHUNK, dtype=torch.uint8, pin_memory=True) for _ in range(_RING)]
    copied = [torch.cuda.Event() for _ in range(_RING)]
    for number, start in enumerate(range(0, target.numel(), _CHUNK)):
        buffer, event = ring[number % _RING], copied[number % _RING]
        part = target[start : start + _CHUNK]
        event.synchronize()  # the copy that used this buffer last
        read_exactly(descriptor, memoryview(buffer.numpy())[: part.numel()], layout.HEAD + start, progress)
        with torch.cuda.stream(stream):
            part.copy_(buffer[: part.numel()], non_blocking=True)
            event.record(stream)
    stream.synchronize()


def read_exactly(
    descriptor: int, view: memoryview, offset: int, progress: Callable[[int], None] = lambda nbytes: None
) -> None:
    """Fill ``view`` from ``offset``; positional, so threads may share a descriptor. Lets other threads run meanwhile.

    Raises:
        OSError: the file cannot be read, or ends early.
    """
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise OSError(f"ends {len(view) - done} bytes early")
        done += count
        progress(count)
