"""Mapped host memory on a GPU: what it costs to make, how fast a kernel reads it, and that it stays.

    python bench/host_memory.py [--layers N] [--quick] [--out FILE]

Allocates layers of the real geometry the way the server does, then measures, in this one run:
allocation and registration with and without huge pages; a read kernel over mapped memory, over a plain
``pin_memory()`` tensor and over device memory; the copy engine's host-to-device rate; and a captured graph
that reads the mapped bytes 1,000 times after every Python object that made them is gone. About a minute.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts
import torch
from cuda_probe import Probe

from moet_w2 import cuda_host, preflight, topology
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import HostAllocation, close_all, open_allocations

LAYER = LayerGeometry(experts=256, hidden=4096, width=2048)
BLOCKS, THREADS = 1056, 256  # 8 blocks on each of an H200's 132 multiprocessors
REPLAYS = 1000


def allocate(count: int, nbytes: int, locality: topology.Locality, huge: bool) -> dict[str, Any]:
    """Make ``count`` layers and leave them open; totals of the seconds of each step, and their proof."""
    before = _status()
    made = [
        HostAllocation(f"layer {number}", nbytes, locality, cuda_host.CudaRegistrar(), huge_pages=huge)
        for number in range(count)
    ]
    after = _status()
    pages: dict[str, int] = {}
    for each in made:
        for node, number in each.pages.by_node.items():
            pages[str(node)] = pages.get(str(node), 0) + number
    return {
        "huge_pages_asked": huge,
        "bytes": count * nbytes,
        "touch_seconds": sum(each.seconds.touch for each in made),
        "lock_seconds": sum(each.seconds.lock for each in made),
        "register_seconds": sum(each.seconds.register for each in made),
        "huge_bytes": sum(each.pages.huge_bytes for each in made),
        "pages_by_node": pages,
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

    def rate(self, ranges: list[tuple[int, int]], repeats: int) -> float:
        """Median GB/s (1e9 bytes) of reading the ranges one after another."""
        out = torch.zeros(1, dtype=torch.int64, device="cuda")

        def work() -> None:
            for address, nbytes in ranges:
                self.enqueue(address, nbytes, out)

        return sum(nbytes for _, nbytes in ranges) / _median_seconds(work, repeats) / 1e9


def _median_seconds(work: Callable[[], None], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def fill(seed: int) -> list[int]:
    """Write random bytes into every open allocation through its device pointer; the words' sum of each."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    sums = []
    for each in open_allocations():
        view = cuda_host.device_view(each.device_address, each.nbytes, torch.device("cuda"))
        source = torch.randint(
            -(2**31), 2**31, (each.nbytes // 4,), dtype=torch.int32, device="cuda", generator=generator
        )
        view.copy_(source.view(torch.uint8))
        sums.append(int((source.long() & 0xFFFFFFFF).sum()))
    return sums


def graph_outlives_its_makers(reader: Reader, nbytes: int, replays: int) -> dict[str, Any]:
    """Capture a read of every allocation, drop all Python objects, replay; count replays that saw other bytes."""
    ranges = [(each.device_address, nbytes) for each in open_allocations()]
    expected = torch.tensor([reader.sum(*one) for one in ranges], device="cuda")
    sums, wrong = torch.zeros_like(expected), torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums.zero_()
        for number, (address, size) in enumerate(ranges):
            reader.enqueue(address, size, sums[number : number + 1])
        wrong += (sums != expected).any()
    gc.collect()
    # What the constructors gave out is gone by now; only the module's own table keeps the memory.
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    return {"replays": replays, "bytes_a_replay": len(ranges) * nbytes, "wrong_replays": int(wrong)}


def pinned_tensor(reader: Reader, nbytes: int, repeats: int) -> dict[str, Any]:
    """The same read over ``torch.empty(..., pin_memory=True)``, and what the host paid for it."""
    before = _status()
    tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    tensor.view(torch.int64).random_()
    grown = _status()["VmRSS"] - before["VmRSS"]
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    copy = _median_seconds(lambda: target.copy_(tensor, non_blocking=True), repeats)
    return {
        "bytes": nbytes,
        "resident_growth": grown,
        "read_gb_per_s": reader.rate([(tensor.data_ptr(), nbytes)], repeats),
        "h2d_copy_gb_per_s": nbytes / copy / 1e9,
        "device_read_gb_per_s": reader.rate([(target.data_ptr(), nbytes)], repeats),
    }


def _status() -> dict[str, int]:
    """Byte counts of /proc/self/status."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(value.split()[0]) * 1024 for key, _, value in lines if value.endswith("kB")}


def measure(layers: int, nbytes: int, repeats: int, replays: int) -> dict[str, Any]:
    locality = topology.gpu_locality(cuda_host.pci_address(torch.cuda.current_device()))
    preflight.check(layers * nbytes, locality)
    reader = Reader()
    small = allocate(layers, nbytes, locality, huge=False)
    fill(0)
    small["read_gb_per_s"] = reader.rate([(e.device_address, e.nbytes) for e in open_allocations()], repeats)
    close_all()
    small["locked_after_close"] = _status()["VmLck"]
    huge = allocate(layers, nbytes, locality, huge=True)
    sums = fill(1)
    ranges = [(e.device_address, e.nbytes) for e in open_allocations()]
    huge["read_gb_per_s"] = reader.rate(ranges, repeats)
    right = [reader.sum(*one) for one in ranges] == sums
    pinned = pinned_tensor(reader, nbytes, repeats)
    graph = graph_outlives_its_makers(reader, min(nbytes, 64 << 20), replays)
    close_all()
    return {
        "benchmark": "host_memory",
        "layers": layers,
        "layer_bytes": nbytes,
        "locality": {"node": locality.node, "nodes": list(locality.nodes), "reason": locality.reason},
        "small_pages": small,
        "huge_pages": huge,
        "checksums_right": right,
        "pin_memory": pinned,
        "mapped_to_copy_ratio": huge["read_gb_per_s"] / pinned["h2d_copy_gb_per_s"],
        "mapped_to_pin_memory_ratio": huge["read_gb_per_s"] / pinned["read_gb_per_s"],
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
