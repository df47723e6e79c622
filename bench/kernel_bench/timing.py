"""Microseconds of replayed graphs, and the read rate that memory gives in the same run."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable

import torch

Work = Callable[[], None]
_BLOCKS = (1, 2, 4, 8)  # a multiprocessor
_ORDERS = ("in turn", "spans")
_THREADS = 256


def graph_of(works: list[Work]) -> torch.cuda.CUDAGraph:
    """Capture works, one after another; each has run before, so that nothing is loaded during the capture."""
    for work in works:
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    return graph


def microseconds(graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]], repeats: int) -> dict[str, float]:
    """Median microseconds of one work of each graph, ``name -> (graph, works in it)``.

    The graphs are replayed in turns, so that a drift of the clock meets all alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(repeats + 2):
        for name, (graph, _) in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= 2:  # the first two rounds warm up
                seconds[name].append(start.elapsed_time(end) / 1e3)
    return {name: statistics.median(seconds[name]) / count * 1e6 for name, (_, count) in graphs.items()}


def host_microseconds(work: Work, calls: int = 100, rounds: int = 7) -> float:
    """Median over rounds of what the host spends on one call; few enough calls that no queue fills up."""
    spent = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        spent.append((time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return statistics.median(spent[1:]) * 1e6


class Reader:
    """Reads ranges of memory with bench/probes/read_tiles.cu, in the way that was found fastest.

    Attributes:
        gb_per_s: rate (1e9 bytes) of each way tried: blocks a multiprocessor, tiles in turn or in spans.
        ceiling: the best of them.
    """

    def __init__(self, ranges: list[torch.Tensor], repeats: int = 5) -> None:
        """Find the fastest way over ``ranges``, uint8 tensors that hold more than the cache."""
        from cuda_probe import Probe

        self._probe, self._sum = Probe("read_tiles"), torch.zeros(1, dtype=torch.int32, device="cuda")
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        nbytes = sum(one.numel() for one in ranges)
        ways = {f"{n} {order}": (n * processors, number) for n in _BLOCKS for number, order in enumerate(_ORDERS)}
        self.gb_per_s = {}
        for name, self._way in ways.items():
            graph = graph_of([self.read(one.data_ptr(), one.numel()) for one in ranges])
            self.gb_per_s[name] = nbytes / microseconds({"read": (graph, 1)}, repeats)["read"] / 1e3
        best = max(self.gb_per_s, key=lambda name: self.gb_per_s[name])
        self._way, self.ceiling = ways[best], self.gb_per_s[best]

    def read(self, address: int, nbytes: int) -> Work:
        """Work that reads a range; ``address`` and ``nbytes`` are multiples of 16."""
        words = ctypes.c_uint64(address), ctypes.c_uint64(nbytes // 16), ctypes.c_uint64(self._sum.data_ptr())
        blocks, spans = self._way
        return lambda: self._probe.launch(blocks, _THREADS, *words, ctypes.c_int(spans))

    def checked(self, one: torch.Tensor) -> bool:
        """Whether a read of a range gives the sum of its 32-bit words."""
        self._sum.zero_()
        self.read(one.data_ptr(), one.numel())()
        expected = int(one.view(torch.int32).long().sum()) & 0xFFFFFFFF
        return int(self._sum) & 0xFFFFFFFF == expected


def copy_gb_per_s(source: torch.Tensor, repeats: int = 5) -> float:
    """Rate of torch's device-to-device copy, bytes read and written together: a second opinion on the ceiling."""
    target = torch.empty_like(source)
    graph = graph_of([lambda: target.copy_(source)])
    return 2 * source.numel() / microseconds({"copy": (graph, 1)}, repeats)["copy"] / 1e3
