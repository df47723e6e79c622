"""How fast ready planes are read, beside dd over the same files, and beside building the layers again.

    python bench/startup.py --dir FOLDER [--layers N] [--repeats N] [--construct N] [--out FILE]

Writes layers of the real geometry into a cache below FOLDER (1.7 GiB each; removed at the end), then reads them in
turns, each with a cold page cache and with a warm one: as the server does, and with ``dd`` into /dev/null, one process
for each of as many files at a time as the server has workers, by direct I/O and buffered. Cold means that the files
were dropped by posix_fadvise, and that the kernel counts no page of them; what lies below a virtual machine cannot be
dropped. Then builds layers anew from a checkpoint shard (3.4 GB, cold each time), as the first start does, without the
rest of vLLM's loader: the seconds of both ways for one layer, and their ratio.

Without a GPU the layers go into locked host memory, as many at a time as there are workers. With one, every second
layer is mapped and the others lie in device memory, all at once, and what arrived is compared with what was written;
the copy engine's own rate from pinned memory is the ceiling. Host memory of some virtual machines appears only when it
is first used, at a few GB/s: ``--grow GIB`` uses it once before anything is measured. 24 layers need 44 GB of disk,
22 GB of device memory and 22 GB of lockable memory; about three minutes at 1.5 GB/s.
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
import torch
from startup_files import Noise, forget, make_cache, make_source
from startup_server import Server

from moet_w2.cache.eligibility import judge
from moet_w2.cache.key import CacheKey
from moet_w2.cache.load import WORKERS
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import close_all
from moet_w2.layer import Shard

LAYER = LayerGeometry(experts=256, hidden=4096, width=2048)


def dd(files: list[Path], direct: bool) -> None:
    """Read every file, as many at a time as the server reads."""
    flags = ["iflag=direct"] if direct else []

    def one(path: Path) -> None:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=16M", *flags], check=True, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(one, files))


def grow(gib: int) -> None:
    """Use ``gib`` GiB of memory once and give it back."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        pieces = list(threads.map(lambda _: torch.zeros(1 << 30, dtype=torch.uint8).fill_(1), range(gib)))
    pieces.clear()


def copy_rate(nbytes: int) -> float:
    """Median GiB/s of the copy engine, from pinned to device memory."""
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def once() -> float:
        torch.cuda.synchronize()
        return timed(lambda: (target.copy_(source, non_blocking=True), torch.cuda.synchronize()))

    return nbytes / statistics.median([once() for _ in range(10)]) / 2**30


def measure(
    folder: Path,
    layers: int,
    repeats: int,
    construct: int,
    geometry: LayerGeometry = LAYER,
    write_seconds: float | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Everything, in this one run; ``folder`` is left full of files. ``keep`` is handed what there is on the way."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    root, source, noise = folder / "cache", folder / "layer.safetensors", Noise()
    files: list[Path] = []
    key = CacheKey("benchmark", geometry, Shard(), layers)
    write = timed(lambda: files.extend(make_cache(root, key, noise, write_seconds)))
    layers = len(files)
    nbytes = layers * geometry.nbytes
    say(f"{layers} layers written in {write:.1f} s")
    eligibility = timed(lambda: _must_be_eligible(root, key, layers))
    server = Server(root, key, layers, device)
    say(f"memory of {server.mapped} mapped layers is there")
    works: dict[str, Callable[[], None]] = {
        "load": server.read,
        "dd_direct": lambda: dd(files, direct=True),
        "dd_buffered": lambda: dd(files, direct=False),
    }
    seconds: dict[str, list[float]] = {}
    cached: list[int | None] = []
    ways: dict[str, dict[str, int]] = {}
    right = True
    for _ in range(repeats):
        for name, work in works.items():
            cached.append(forget(files))
            seconds.setdefault(f"{name}_cold", []).append(timed(work))
            say(f"{name}, cold: {seconds[f'{name}_cold'][-1]:.1f} s")
            if name == "load":
                ways["cold"] = dict(server.ways)
                right &= server.holds(noise)
        dd(files, direct=False)  # fills the page cache as far as memory goes
        for name in ("load", "dd_buffered"):
            seconds.setdefault(f"{name}_warm", []).append(timed(works[name]))
            say(f"{name}, warm: {seconds[f'{name}_warm'][-1]:.1f} s")
        ways["warm"] = dict(server.ways)
        right &= server.holds(noise)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    rate = {name: nbytes / value / 2**30 for name, value in median.items()}
    result = {
        "benchmark": "startup",
        "layers": layers,
        "mapped_layers": layers if device.type == "cpu" else server.mapped,
        "bytes": nbytes,
        "repeats": repeats,
        "workers": WORKERS,
        "ways": ways,
        "bytes_right": right,
        "cold": "posix_fadvise",
        "cached_bytes_before_cold": None if None in cached else max(cached, default=None),
        "write_seconds": write,
        "eligibility_seconds": eligibility,
        "seconds": median,
        "gib_per_s": rate,
        "cold_ratio_to_best_dd": rate["load_cold"] / max(rate["dd_direct_cold"], rate["dd_buffered_cold"]),
    }
    if device.type == "cuda":
        result["h2d_gib_per_s"] = copy_rate(min(geometry.nbytes, 1 << 30))
    keep(result)
    if construct:
        make_source(source, geometry, noise)
        built = []
        for number in range(construct):
            forget([source])
            built.append(timed(lambda number=number: server.construct(source, number % layers)))
            say(f"layer {number} built in {built[-1]:.1f} s")
        loaded = median["load_cold"] / layers
        result["construct"] = {
            "layers": construct,
            "source_bytes_per_layer": source.stat().st_size,
            "seconds_per_layer": statistics.median(built),
            "load_seconds_per_layer": loaded,
            "ratio": statistics.median(built) / loaded,
        }
        keep(result)
    close_all()
    return result


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def say(line: str) -> None:
    """Progress, at once."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _must_be_eligible(root: Path, key: CacheKey, layers: int) -> None:
    verdicts = judge(root, key, range(layers))
    if set(verdicts.values()) != {None}:
        raise SystemExit(f"the cache is not eligible: {verdicts}")


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of reading ready planes")
    parser.add_argument("--dir", type=Path, required=True, help="folder on the disk to measure")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--construct", type=int, default=0, help="layers to build as the first start does")
    parser.add_argument("--write-seconds", type=float, help="be content with fewer layers after this long")
    parser.add_argument("--grow", type=int, default=0, metavar="GIB", help="memory to use once before all else")
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()

    def keep(result: dict[str, Any]) -> None:
        if args.out:
            facts.write(args.out, result)

    folder = args.dir / f"moet-startup-{os.getpid()}"
    folder.mkdir()
    try:
        if args.grow:
            say(f"{args.grow} GiB of memory used once in {timed(lambda: grow(args.grow)):.1f} s")
        result = measure(folder, args.layers, args.repeats, args.construct, write_seconds=args.write_seconds, keep=keep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in result.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
