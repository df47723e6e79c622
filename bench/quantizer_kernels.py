"""How fast the quantise-and-pack kernels are on a GPU, each beside a copy of the same bytes in the same run.

Times are those of replayed CUDA graphs over more tensors than the L2 cache holds, so launches from Python do not
count. ``bench/quantizer.py --device cuda`` reports them together with the speed of loading.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from moet_w2 import cuda_host
from moet_w2.host_memory import HostAllocation
from moet_w2.kernels import quantize
from moet_w2.topology import Locality

ROWS, COLS = 2048, 4096
TENSORS = 32
"""4 MiB of codes each, as a w1 of the real geometry: 128 MiB."""


def measure(repeats: int) -> dict[str, dict[str, Any]]:
    """Time each kernel and its copy.

    Returns:
        by kernel: bytes of one tensor in and out, medians in microseconds a tensor of the kernel (for planes both of
        its launches) and of the copy, GB/s (1e9 bytes) of bytes in, and the kernel's share of the copy's rate. The
        copy is of the bytes in, from device memory to device memory; for ``planes_mapped`` of the bytes out, to the
        same mapped memory.
    """
    codes = torch.randint(0, 256, (TENSORS, ROWS, COLS // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(64, 192, (TENSORS, ROWS, COLS // 32), dtype=torch.uint8, device="cuda")
    planes, fp4, scales_out = (
        torch.empty(TENSORS, ROWS * COLS // part, dtype=torch.uint8, device="cuda") for part in (4, 2, 32)
    )
    copied, scales_copied = torch.empty_like(codes), torch.empty_like(scales)
    host = HostAllocation("planes", planes.nbytes, Locality(0, (0,), "node 0"), cuda_host.CudaRegistrar())
    mapped = cuda_host.device_view(host.device_address, planes.nbytes, planes.device).view_as(planes)

    def each(source: torch.Tensor, out: torch.Tensor, work: Callable[[torch.Tensor, torch.Tensor], Any]) -> float:
        def all_tensors() -> None:
            for number in range(TENSORS):
                work(source[number], out[number])

        return _microseconds(all_tensors, repeats) / TENSORS

    def pack_planes(source: torch.Tensor, out: torch.Tensor) -> None:
        quantize.pack_planes(source, source, out)

    def copy(source: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(source)

    code_copy = each(codes, copied, copy)
    results = {
        "planes": _entry(codes, planes, each(codes, planes, pack_planes), code_copy),
        "planes_mapped": _entry(codes, mapped, each(codes, mapped, pack_planes), each(planes, mapped, copy)),
        "fp4": _entry(codes, fp4, each(codes, fp4, quantize.pack_fp4), code_copy),
        "scales": _entry(
            scales, scales_out, each(scales, scales_out, quantize.pack_scales), each(scales, scales_copied, copy)
        ),
    }
    host.close()
    return results


def _entry(source: torch.Tensor, out: torch.Tensor, kernel: float, copy: float) -> dict[str, Any]:
    bytes_in = source.nbytes // TENSORS
    return {
        "bytes_in": bytes_in,
        "bytes_out": out.nbytes // TENSORS,
        "microseconds": kernel,
        "copy_microseconds": copy,
        "gb_per_s": bytes_in / kernel / 1e3,
        "ratio_to_copy": copy / kernel,
    }


def _microseconds(work: Callable[[], None], repeats: int) -> float:
    """Median time of a graph of ``work``."""
    work()  # loads the kernels, which a capture may not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(first.elapsed_time(last) for first, last in zip(marks, marks[1:], strict=False))
