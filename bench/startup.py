"""How fast ready planes are read, beside dd over the same files in the same run.

    python bench/startup.py --dir FOLDER [--layers N] [--repeats N] [--out FILE]

Writes layers of the real geometry into a cache below FOLDER (random bytes, about 1.7 GiB each; removed at the
end), then reads them in turns, each with a cold page cache and with a warm one: as the server does, into locked
host memory, and with ``dd`` into /dev/null, one process for each of as many files at a time as the server has
workers, by direct I/O and buffered. Needs locked memory for one layer a worker.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import facts
import numpy

from moet_w2 import topology
from moet_w2.cache import layout
from moet_w2.cache.eligibility import judge
from moet_w2.cache.key import CacheKey
from moet_w2.cache.load import WORKERS, load
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import HostAllocation, close_all
from moet_w2.layer import Shard, W2Layer
from moet_w2.placement import Placement

LAYER = LayerGeometry(experts=256, hidden=4096, width=2048)
_CHUNK = 64 << 20


def make_cache(root: Path, key: CacheKey) -> list[Path]:
    """Payload files of random bytes with their sidecars. Their digests are not real: nothing here reads them."""
    directory = layout.folder(root, key)
    directory.mkdir(parents=True)
    noise = numpy.random.default_rng(0)
    files = []
    for layer in range(key.layers):
        path = layout.payload_path(directory, layer)
        with path.open("wb") as file:
            file.write(layout.head(key.digest, layer, key.geometry.nbytes))
            for start in range(0, key.geometry.nbytes, _CHUNK):
                file.write(noise.bytes(min(_CHUNK, key.geometry.nbytes - start)))
            file.flush()
            os.fsync(file.fileno())
        sidecar = layout.Sidecar(key.digest, layer, key.geometry.nbytes, "0" * 64)
        layout.sidecar_path(directory, layer).write_text(sidecar.to_json())
        files.append(path)
    return files


class Server:
    """Reads the cache as a worker process does: a destination for each worker, in locked memory."""

    def __init__(self, root: Path, key: CacheKey) -> None:
        self.root, self.key = root, key
        locality = topology.cpu_locality()
        self.hosts = [HostAllocation(f"layer {n}", key.geometry.nbytes, locality) for n in range(WORKERS)]

    def read(self) -> None:
        for start in range(0, self.key.layers, WORKERS):
            layers = [
                W2Layer(start + number, self.key.geometry, Placement.MAPPED, host.tensor(), host)
                for number, host in enumerate(self.hosts[: self.key.layers - start])
            ]
            results = load(self.root, self.key, layers)
            if any(result.miss is not None for result in results):
                raise SystemExit(f"a layer was not read: {results}")
            self.direct = all(result.direct for result in results)


def dd(files: list[Path], direct: bool) -> None:
    """Read every file, as many at a time as the server reads."""
    flags = ["iflag=direct"] if direct else []

    def one(path: Path) -> None:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=16M", *flags], check=True, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(one, files))


def forget(files: list[Path]) -> None:
    """Drop the files from the page cache."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(root: Path, layers: int, repeats: int, geometry: LayerGeometry = LAYER) -> dict[str, Any]:
    key = CacheKey("benchmark", geometry, Shard(), layers)
    files = make_cache(root, key)
    nbytes = layers * geometry.nbytes
    start = time.perf_counter()
    verdicts = judge(root, key, range(layers))
    eligibility = time.perf_counter() - start
    if set(verdicts.values()) != {None}:
        raise SystemExit(f"the cache is not eligible: {verdicts}")
    server = Server(root, key)
    works: dict[str, Callable[[], None]] = {
        "load": server.read,
        "dd_direct": lambda: dd(files, direct=True),
        "dd_buffered": lambda: dd(files, direct=False),
    }
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, work in works.items():
            forget(files)
            seconds.setdefault(f"{name}_cold", []).append(_timed(work))
        dd(files, direct=False)  # fills the page cache as far as memory goes
        for name in ("load", "dd_buffered"):
            seconds.setdefault(f"{name}_warm", []).append(_timed(works[name]))
    close_all()
    rate = {name: nbytes / statistics.median(values) / 2**30 for name, values in seconds.items()}
    return {
        "benchmark": "startup",
        "layers": layers,
        "bytes": nbytes,
        "repeats": repeats,
        "workers": WORKERS,
        "direct_io": server.direct,
        "eligibility_seconds": eligibility,
        "gib_per_s": rate,
        "cold_ratio_to_best_dd": rate["load_cold"] / max(rate["dd_direct_cold"], rate["dd_buffered_cold"]),
    }


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of reading ready planes")
    parser.add_argument("--dir", type=Path, required=True, help="folder on the disk to measure")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    root = args.dir / f"moet-startup-{os.getpid()}"
    try:
        result = measure(root, args.layers, args.repeats)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for name, value in result.items():
        print(f"{name}: {value}")
    if args.out:
        facts.write(args.out, result)


if __name__ == "__main__":
    main()
