"""Memory sizes and read rates of the machine at hand. The only module of the planner that needs torch.

On a CUDA machine a reduction reads a large tensor in device memory, and the same bytes in mapped host memory, allocated
the way the server does it. On a CPU it reads what computes there; there is no link.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import preflight
from .machine import Machine

if TYPE_CHECKING:
    import torch

REPEATS = 5
DEVICE_BYTES = 4 << 30
"""Read in device memory: many times the caches of any card."""
MAPPED_BYTES = 1 << 30
CPU_BYTES = 512 << 20


@dataclass(frozen=True)
class Measured:
    """A machine, and how its figures came about.

    Attributes:
        machine: sizes and rates.
        notes: one line each.
    """

    machine: Machine
    notes: tuple[str, ...]


def measure(root: Path = Path("/")) -> Measured:
    """Measure this machine in a few seconds.

    Args:
        root: where /proc and /sys are, for tests.

    Raises:
        HostMemoryError: mapped memory cannot be had.
    """
    import torch

    host, source = _host_bytes(root)
    if not torch.cuda.is_available():
        rate = _gbs(torch.ones(CPU_BYTES // 8, dtype=torch.int64), time.perf_counter, lambda: None)
        notes = (
            f"no CUDA device: {host:,} bytes of memory ({source}), read at {rate:,.1f} GB/s by "
            f"{torch.get_num_threads()} threads; there is no link, and figures of CUDA kernels say little here",
        )
        return Measured(Machine(host, host, rate, None, sm=0), notes)
    device = torch.device("cuda", torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info(device)
    size = min(DEVICE_BYTES, free // 2)
    hbm = _device_gbs(size, device)
    link = _mapped_gbs(device)
    name = torch.cuda.get_device_name(device)
    notes = (
        f"{name}: {total:,} bytes as CUDA reports them, {free:,} free; a reduction reads device memory at "
        f"{hbm:,.0f} GB/s and mapped host memory at {link:,.1f} GB/s (median of {REPEATS})",
        f"host: {host:,} bytes ({source})",
    )
    return Measured(Machine(total, host, hbm, link, sm=torch.cuda.get_device_capability(device)[0]), notes)


def _host_bytes(root: Path) -> tuple[int, str]:
    """Memory that could be locked here: the machine's, or a smaller limit on it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    smallest = min(preflight.limits(None, root), key=lambda limit: limit.nbytes, default=None)
    if smallest is None or smallest.nbytes >= total:
        return total, "the machine's memory"
    return max(1, smallest.nbytes), smallest.source


def _device_gbs(nbytes: int, device: torch.device) -> float:
    import torch

    return _cuda_gbs(torch.ones(nbytes // 8, dtype=torch.int64, device=device))


def _mapped_gbs(device: torch.device) -> float:
    import torch

    from .. import cuda_host, topology
    from ..host_memory import HostAllocation

    locality = topology.gpu_locality(cuda_host.pci_address(device.index))
    allocation = HostAllocation("measured memory", MAPPED_BYTES, locality, cuda_host.CudaRegistrar())
    try:
        address = allocation.device_address or 0
        return _cuda_gbs(cuda_host.device_view(address, MAPPED_BYTES, device).view(torch.int64))
    finally:
        allocation.close()


def _cuda_gbs(values: torch.Tensor) -> float:
    import torch

    return _gbs(values, time.perf_counter, torch.cuda.synchronize)


def _gbs(values: torch.Tensor, clock: Callable[[], float], settle: Callable[[], object]) -> float:
    """GB/s of a reduction over a tensor, the median of :data:`REPEATS` after one that is not counted."""
    spent = []
    for _ in range(REPEATS + 1):
        settle()
        start = clock()
        values.sum()
        settle()
        spent.append(clock() - start)
    return values.nbytes / statistics.median(spent[1:]) / 1e9
