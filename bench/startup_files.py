"""Large files for bench/startup.py: written fast, different everywhere, known byte for byte, and made cold."""

from __future__ import annotations

import mmap
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from safetensors.numpy import save_file

from moet_w2.cache import layout, reads
from moet_w2.cache.key import CacheKey
from moet_w2.geometry import SCALE_BLOCK, LayerGeometry

CHUNK = 32 << 20
WRITERS = 8
_STEP = 64  # bytes: offsets into the noise that are no whole pages, so that no page of a file equals another's


class Noise:
    """Random bytes that need not be kept: chunk n of layer k is a slice of one small pool."""

    def __init__(self, seed: int = 0) -> None:
        self.pool = numpy.frombuffer(numpy.random.default_rng(seed).bytes(2 * CHUNK), dtype=numpy.uint8)

    @staticmethod
    def offset(layer: int, number: int) -> int:
        """Where chunk ``number`` of a layer begins in the pool."""
        return (layer * 104_729 + number * 7_919) % (CHUNK // _STEP) * _STEP


def make_cache(root: Path, key: CacheKey, noise: Noise, seconds: float | None = None) -> list[Path]:
    """Payload files with their sidecars; the digests are not real, for nothing here reads them.

    Args:
        root: the cache root.
        key: gives geometry and number of layers.
        noise: the content.
        seconds: begin no further layer after this long, but keep their number even; None writes all.

    Returns:
        the files, of layers 0 and on.
    """
    directory = layout.folder(root, key)
    directory.mkdir(parents=True)
    deadline = time.monotonic() + (seconds or 1e9)
    waiting, lock = iter(range(key.layers)), threading.Lock()
    made: list[int] = []

    def write_next() -> None:
        while True:
            with lock:
                if time.monotonic() >= deadline and len(made) % 2 == 0:
                    return
                layer = next(waiting, None)
                if layer is None:
                    return
                made.append(layer)
            _write_layer(directory, key, layer, noise)

    with ThreadPoolExecutor(WRITERS) as threads:
        for done in [threads.submit(write_next) for _ in range(WRITERS)]:
            done.result()
    return [layout.payload_path(directory, layer) for layer in made]


def _write_layer(directory: Path, key: CacheKey, layer: int, noise: Noise) -> None:
    """One layer, past the page cache where the filesystem and the length allow it."""
    nbytes, path = key.geometry.nbytes, layout.payload_path(directory, layer)
    path.write_bytes(layout.head(key.digest, layer, nbytes))
    try:
        file = os.open(path, os.O_WRONLY | (os.O_DIRECT if nbytes % mmap.PAGESIZE == 0 else 0))
    except OSError:
        file = os.open(path, os.O_WRONLY)
    with mmap.mmap(-1, CHUNK) as buffer, memoryview(buffer) as view:
        for number, start in enumerate(range(0, nbytes, CHUNK)):
            count, offset = min(CHUNK, nbytes - start), noise.offset(layer, number)
            view[:count] = memoryview(noise.pool)[offset : offset + count]
            done = 0
            while done < count:
                done += os.pwrite(file, view[done:count], layout.HEAD + start + done)
    os.fsync(file)
    os.close(file)
    sidecar = layout.Sidecar(key.digest, layer, nbytes, "0" * 64)
    layout.sidecar_path(directory, layer).write_text(sidecar.to_json())


def make_source(path: Path, geometry: LayerGeometry, noise: Noise) -> None:
    """The checkpoint tensors of one layer, named ``EXPERT.PROJECTION.KIND``, in one safetensors file."""
    tensors = {}
    for expert in range(geometry.experts):
        for projection in ("w1", "w2", "w3"):
            rows, cols = geometry.width, geometry.hidden
            if projection == "w2":
                rows, cols = cols, rows
            for kind, per_byte in (("weight", 2), ("scale", SCALE_BLOCK)):
                offset = noise.offset(expert, len(tensors))
                nbytes = rows * cols // per_byte
                made = noise.pool[offset : offset + nbytes]
                if kind == "scale":
                    made = made % 16 + 110  # a checkpoint's scales: 2^-17 to 2^-2
                tensors[f"{expert}.{projection}.{kind}"] = made.reshape(rows, -1)
    save_file(tensors, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def forget(files: list[Path]) -> int | None:
    """Drop files from the page cache; the bytes that stay there all the same, None where the kernel cannot tell.

    What the host of a virtual machine or a storage server keeps is out of reach.
    """
    left = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        pages = reads.cached_pages(descriptor)
        os.close(descriptor)
        if pages is None:
            return None
        left += pages * mmap.PAGESIZE
    return left
