"""Mapped host memory on a GPU: what it costs to make, how fast a kernel reads it, and that it stays.

    python bench/host_memory.py [--layers N] [--quick] [--out FILE]

Allocates layers of the real geometry the way the server does, with and without huge pages, then measures in
turns, in this one run: a read kernel over each, over a plain ``pin_memory()`` tensor and over device memory, and
the copy engine's host-to-device rate. Then a captured graph reads the mapped bytes 1,000 times after every Python
object that made them is gone. About a minute; 16 GiB of lockable memory. For compute-sanitizer:

    compute-sanitizer --tool memcheck --report-api-errors no python bench/host_memory.py --quick
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts
import torch
from cuda_probe import Probe

from moet_w2 import cuda_host, preflight, topology
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import HostAllocation, close_all

LAYER = LayerGeometry(experts=256, hidden=4096, width=2048)
BLOCKS, THREADS = 1056, 256  # 8 blocks on each of an H200's 132 multiprocessors
REPLAYS = 1000

Ranges = list[tuple[int, int]]
"""Device address and bytes of each."""


def allocate(count: int, nbytes: int, locality: topology.Locality, huge: bool) -> tuple[Ranges, dict[str, Any]]:
    """Make ``count`` layers and leave them open; where the device sees them, and what they cost."""
    before = _status()
    made = [
        HostAllocation(f"layer {number}", nbytes, locality, cuda_host.CudaRegistrar(), huge_pages=huge)
        for number in range(count)
    ]
    after = _status()
    pages: Counter[str] = Counter()
    for each in made:
        pages.update({str(node): number for node, number in each.pages.by_node.items()})
    return [(each.device_address, each.nbytes) for each in made], {
        "huge_pages_asked": huge,
        "bytes": count * nbytes,
        "touch_seconds": sum(each.seconds.touch for each in made),
        "lock_seconds": sum(each.seconds.lock for each in made),
        "register_seconds": sum(each.seconds.register for each in made),
        "huge_bytes": sum(each.pages.huge_bytes for each in made),
        "pages_by_node": dict(pages),
        "page_bytes": made[0].pages.page_bytes,
        "locked_growth": after["VmLck"] - before["VmLck"],
        "resident_growth": after["VmRSS"] - before["VmRSS"],
        "uva_equal": all(each.device_address == each.address for each in made),
    }


class Reader:
    """Reads device-visible ranges with the probe kernel."""

    def __init__(self) -> None:
        self.probe = Probe("read_sum")

    def enqueue(self, address: int, nbytes: int, out: torch.Tensor) -> None:
        """Add the sum of the range's 32-bit words to ``out``, int64 ``[1]`` on the device."""
        words = (ctypes.c_uint64(address), ctypes.c_uint64(nbytes // 16), ctypes.c_uint64(out.data_ptr()))
        self.probe.launch(BLOCKS, THREADS, *words)

    def sum(self, address: int, nbytes: int) -> int:
        out = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.enqueue(address, nbytes, out)
        return int(out)

    def read(self, ranges: Ranges) -> Callable[[], None]:
        """Work that reads the ranges one after another."""
        out = torch.zeros(1, dtype=torch.int64, device="cuda")

        def work() -> None:
            for address, nbytes in ranges:
                self.enqueue(address, nbytes, out)

        return work


def rates(works: dict[str, tuple[int, Callable[[], None]]], repeats: int) -> dict[str, float]:
    """Median GB/s (1e9 bytes) of each work, ``name -> (bytes, work)``, taken in turns so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(repeats + 1):
        for name, (_, work) in works.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            if number:  # the first round warms up
                seconds[name].append(start.elapsed_time(end) / 1e3)
    return {name: nbytes / statistics.median(seconds[name]) / 1e9 for name, (nbytes, _) in works.items()}


def fill(ranges: Ranges, seed: int) -> list[int]:
    """Write random bytes through the device pointers; the sum of each range's 32-bit words."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    sums = []
    for address, nbytes in ranges:
        view = cuda_host.device_view(address, nbytes, torch.device("cuda"))
        source = torch.randint(-(2**31), 2**31, (nbytes // 4,), dtype=torch.int32, device="cuda", generator=generator)
        view.copy_(source.view(torch.uint8))
        sums.append(int((source.long() & 0xFFFFFFFF).sum()))
    return sums


def replay_after_makers_are_gone(reader: Reader, ranges: Ranges, replays: int) -> dict[str, Any]:
    """Capture a read of every range, collect what no name holds, replay; count replays that saw other bytes.

    The allocations' Python objects belong to functions that have returned: only the package keeps the memory.
    """
    expected = torch.tensor([reader.sum(*one) for one in ranges], device="cuda")
    sums, wrong = torch.zeros_like(expected), torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums.zero_()
        for number, (address, size) in enumerate(ranges):
            reader.enqueue(address, size, sums[number : number + 1])
        wrong += (sums != expected).any()
    gc.collect()
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    return {"replays": replays, "bytes_a_replay": sum(size for _, size in ranges), "wrong_replays": int(wrong)}


def _status() -> dict[str, int]:
    """Byte counts of /proc/self/status."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(value.split()[0]) * 1024 for key, _, value in lines if value.endswith("kB")}


def measure(layers: int, nbytes: int, repeats: int, replays: int) -> dict[str, Any]:
    locality = topology.gpu_locality(cuda_host.pci_address(torch.cuda.current_device()))
    preflight.check(2 * layers * nbytes, locality)
    reader = Reader()
    small_ranges, small = allocate(layers, nbytes, locality, huge=False)
    huge_ranges, huge = allocate(layers, nbytes, locality, huge=True)
    checksums_right = all(
        [reader.sum(*one) for one in ranges] == fill_sums
        for ranges, fill_sums in [(r, fill(r, seed)) for seed, r in enumerate((small_ranges, huge_ranges))]
    )
    before = _status()["VmRSS"]
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    pinned.view(torch.int64).random_()
    pinned_growth = _status()["VmRSS"] - before
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    total = layers * nbytes
    gb_per_s = rates(
        {
            "mapped_small_pages": (total, reader.read(small_ranges)),
            "mapped_huge_pages": (total, reader.read(huge_ranges)),
            "pin_memory_tensor": (nbytes, reader.read([(pinned.data_ptr(), nbytes)])),
            "h2d_copy": (nbytes, lambda: target.copy_(pinned, non_blocking=True)),
            "device_memory": (nbytes, reader.read([(target.data_ptr(), nbytes)])),
        },
        repeats,
    )
    parts = [(address, min(size, 64 << 20)) for address, size in small_ranges + huge_ranges]
    graph = replay_after_makers_are_gone(reader, parts, replays)
    close_all()
    return {
        "benchmark": "host_memory",
        "layers": layers,
        "layer_bytes": nbytes,
        "locality": {"node": locality.node, "nodes": list(locality.nodes), "reason": locality.reason},
        "small_pages": small,
        "huge_pages": huge,
        "pin_memory_resident_growth": pinned_growth,
        "checksums_right": checksums_right,
        "gb_per_s": gb_per_s,
        "ratio_to_copy": {
            name: gb_per_s[name] / gb_per_s["h2d_copy"]
            for name in ("mapped_small_pages", "mapped_huge_pages", "pin_memory_tensor")
        },
        "graph": graph,
        "locked_after_close": _status()["VmLck"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="mapped host memory: cost, speed, lifetime")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="small allocations, for compute-sanitizer")
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    if args.quick:
        result = measure(args.layers, 8 << 20, repeats=2, replays=10)
    else:
        result = measure(args.layers, LAYER.nbytes, repeats=10, replays=REPLAYS)
    for key, value in result.items():
        print(f"{key}: {value}")
    if args.out:
        facts.write(args.out, result)


if __name__ == "__main__":
    main()
