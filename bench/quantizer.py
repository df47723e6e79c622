"""How fast MXFP4 experts become W2 planes, beside a plain copy of the same bytes in the same run.

    python bench/quantizer.py [--repeats N] [--threads N] [--device cuda] [--out FILE]

One repeat streams one expert of the real geometry (w1, w2, w3 and their scales) from host memory into its final
place, as loading does, then copies the same source bytes to where that place is. The median of all repeats is
reported. On a GPU this is measured from ordinary and from pinned memory, and the kernels by themselves.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts
import torch

from moet_w2.geometry import LayerGeometry
from moet_w2.layer import PROJECTIONS, W2Layer
from moet_w2.placement import Placement

EXPERT = LayerGeometry(experts=1, hidden=4096, width=2048)


def measure(
    repeats: int, geometry: LayerGeometry = EXPERT, device: str = "cpu", pinned: bool = False
) -> dict[str, Any]:
    """Time quantising and copying one expert.

    Args:
        repeats: how often.
        geometry: of a layer of one expert.
        device: where the layer lies.
        pinned: whether the source lies in pinned host memory.

    Returns:
        bytes in, median seconds of each, GB/s (1e9 bytes) of each, and the quantiser's share of the copy's rate.
    """
    tensors = {place: tensor.pin_memory() if pinned else tensor for place, tensor in _source(geometry).items()}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    copies = {place: torch.empty_like(tensor, device=device) for place, tensor in tensors.items()}

    def quantize() -> None:
        layer = W2Layer(0, geometry, Placement.DEVICE, storage)
        for (projection, kind), tensor in tensors.items():
            layer.put(0, projection, kind, tensor)

    def copy() -> None:
        for place, tensor in tensors.items():
            copies[place].copy_(tensor)

    storage = torch.empty(geometry.nbytes, dtype=torch.uint8, device=device)
    seconds: dict[str, list[float]] = {"quantize": [], "copy": []}
    for number in range(repeats + 1):
        for name, work in (("quantize", quantize), ("copy", copy)):
            elapsed = _timed(work, device)
            if number:  # the first repeat warms up
                seconds[name].append(elapsed)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "bytes_in": nbytes,
        "quantize_seconds": median["quantize"],
        "copy_seconds": median["copy"],
        "quantize_gb_per_s": nbytes / median["quantize"] / 1e9,
        "copy_gb_per_s": nbytes / median["copy"] / 1e9,
        "ratio_to_copy": median["copy"] / median["quantize"],
    }


def _source(geometry: LayerGeometry) -> dict[tuple[str, str], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for projection in PROJECTIONS:
        rows, cols = geometry.width, geometry.hidden
        if projection == "w2":
            rows, cols = cols, rows
        codes = torch.randint(0, 256, (rows, cols // 2), dtype=torch.uint8, generator=generator)
        scales = torch.randint(118, 123, (rows, cols // 32), dtype=torch.uint8, generator=generator)
        tensors[projection, "weight"], tensors[projection, "scale"] = codes, scales
    return tensors


def _timed(work: Callable[[], None], device: str) -> float:
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of the MXFP4 to W2 quantiser")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = measure(args.repeats, device=args.device)
    _report("MXFP4 in", result)
    if args.device.startswith("cuda"):
        import quantizer_kernels

        result["pinned"] = measure(args.repeats, device=args.device, pinned=True)
        _report("from pinned memory", result["pinned"])
        result["kernels"] = quantizer_kernels.measure(args.repeats)
        for name, entry in result["kernels"].items():
            print(
                f"kernel {name}: {entry['microseconds']:.1f} us for {entry['bytes_in']:,} bytes in, "
                f"{entry['gb_per_s']:.0f} GB/s, ratio to a copy {entry['ratio_to_copy']:.2f}"
            )
    if args.out:
        facts.write(args.out, {"benchmark": "quantizer", "threads": args.threads, "device": args.device, **result})


def _report(what: str, result: dict[str, Any]) -> None:
    print(
        f"{what}: {result['bytes_in']:,} bytes, quantise {result['quantize_gb_per_s']:.2f} GB/s, "
        f"copy {result['copy_gb_per_s']:.2f} GB/s, ratio {result['ratio_to_copy']:.3f}"
    )


if __name__ == "__main__":
    main()
