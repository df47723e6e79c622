"""Is there a faster way to read ready planes than positional reads from threads?

    python -m pip install --no-deps --target SITE fastsafetensors
    PYTHONPATH=SITE python bench/reads.py --dir FOLDER [--files N] [--repeats N] [--out FILE]

Reads the same files of 1 GiB, cold each time, in turns, with what the package does (threads, preadv, direct I/O), with
io_uring at several depths, and with fastsafetensors where that is installed. The first two read into memory that is
there already, page-aligned, as a mapped layer is; fastsafetensors takes memory of its own, and its copy to a final
place is not counted. The files are safetensors files of one tensor, so that every way can read them.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import mmap
import os
import shutil
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import facts
import uring
from startup import say, timed
from startup_files import CHUNK, Noise, forget

from moet_w2.cache import layout, reads
from moet_w2.cache.load import WORKERS

RINGS = ((16 << 20, 4), (16 << 20, 16), (1 << 20, 32))
"""Bytes of one read and reads under way, for io_uring."""


def make_files(folder: Path, count: int, nbytes: int, noise: Noise) -> list[Path]:
    """Files of ``nbytes`` noise behind one page of header."""
    files = []
    for number in range(count):
        tensor = {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}
        text = json.dumps({f"planes.{number}": tensor}).encode()
        head = (layout.HEAD - 8).to_bytes(8, "little") + text.ljust(layout.HEAD - 8)
        path = folder / f"{number}.safetensors"
        with path.open("wb") as file:
            file.write(head)
            for part, start in enumerate(range(0, nbytes, CHUNK)):
                offset = noise.offset(number, part)
                file.write(memoryview(noise.pool)[offset : offset + min(CHUNK, nbytes - start)])
            file.flush()
            os.fsync(file.fileno())
        files.append(path)
    return files


class Memory:
    """Page-aligned memory for every file, touched."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.maps = [mmap.mmap(-1, nbytes) for _ in range(count)]
        self.views = [memoryview(one) for one in self.maps]
        self.clear()

    def clear(self) -> None:
        """Zeros, so that what is compared next was read next."""
        zeros = bytes(1 << 20)
        for view in self.views:
            for start in range(0, len(view), len(zeros)):
                view[start : start + len(zeros)] = zeros[: len(view) - start]

    def holds(self, noise: Noise) -> bool:
        """Whether every file's bytes are here."""
        pool = memoryview(noise.pool)
        return all(
            view[start : start + CHUNK] == pool[offset : offset + len(view[start : start + CHUNK])]
            for number, view in enumerate(self.views)
            for part, start in enumerate(range(0, len(view), CHUNK))
            for offset in [noise.offset(number, part)]
        )


def threads(files: list[Path], memory: Memory) -> None:
    """As moet_w2.cache.load reads."""

    def one(path: Path, view: memoryview) -> None:
        with reads.Payload(path, aligned=True) as payload:
            for start in range(0, len(view), reads.CHUNK):
                payload.read(view[start : start + reads.CHUNK], start)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(one, files, memory.views))


def io_uring(files: list[Path], memory: Memory, chunk: int, depth: int) -> None:
    """One ring, ``depth`` direct reads of ``chunk`` bytes under way at any time."""
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in files]
    places = [ctypes.addressof(ctypes.c_char.from_buffer(one)) for one in memory.maps]
    jobs = (
        (descriptor, place + start, min(chunk, len(one) - start), layout.HEAD + start)
        for descriptor, place, one in zip(descriptors, places, memory.maps, strict=True)
        for start in range(0, len(one), chunk)
    )
    with uring.Ring(depth) as ring:
        ring.read(jobs, depth)
    for descriptor in descriptors:
        os.close(descriptor)


def fastsafetensors(files: list[Path], memory: Memory) -> None:
    """The library's loader, without GPU direct storage, with as many threads."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", max_threads=WORKERS, nogds=True)
    loader.add_filenames({0: [str(path) for path in files]})
    loader.copy_files_to_device().close()
    loader.close()


def measure(folder: Path, count: int, repeats: int, nbytes: int = 1 << 30) -> dict[str, Any]:
    noise = Noise()
    files, memory = make_files(folder, count, nbytes, noise), Memory(count, nbytes)
    works: dict[str, Callable[[], None]] = {"threads": lambda: threads(files, memory)}
    for chunk, depth in RINGS:
        name = f"io_uring_{chunk >> 20}mib_depth_{depth}"
        works[name] = lambda chunk=chunk, depth=depth: io_uring(files, memory, chunk, depth)
    if importlib.util.find_spec("fastsafetensors"):
        works["fastsafetensors"] = lambda: fastsafetensors(files, memory)
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, work in works.items():
            memory.clear()
            forget(files)
            seconds.setdefault(name, []).append(timed(work))
            say(f"{name}: {seconds[name][-1]:.1f} s")
            if name != "fastsafetensors" and not memory.holds(noise):
                raise SystemExit(f"{name} read other bytes than were written")
    rate = {name: count * nbytes / statistics.median(values) / 2**30 for name, values in seconds.items()}
    return {
        "benchmark": "reads",
        "bytes": count * nbytes,
        "repeats": repeats,
        "workers": WORKERS,
        "fastsafetensors": importlib.metadata.version("fastsafetensors") if "fastsafetensors" in works else None,
        "seconds": seconds,
        "gib_per_s": rate,
        "ratio_to_threads": {name: value / rate["threads"] for name, value in rate.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="ways of reading large files")
    parser.add_argument("--dir", type=Path, required=True, help="folder on the disk to measure")
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    folder = args.dir / f"moet-reads-{os.getpid()}"
    folder.mkdir()
    try:
        result = measure(folder, args.files, args.repeats)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in result.items():
        print(f"{name}: {value}")
    if args.out:
        facts.write(args.out, result)


if __name__ == "__main__":
    main()
