"""Bytes that a decode step read over the link, out of one phase of a result of bench/serving.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

READ, STEPS = "moet_mapped_read_bytes_total", "moet_steps_total"
PROMOTED = "moet_correction_read_bytes_total"
TRANSFERS = {3: 8.0, 4: 16.0, 5: 32.0}
"""Gigatransfers a second of a PCIe lane by generation, one bit each, of which 128 of 130 are data (PCI Express Base
Specification 5.0, 4.2)."""


def counted(counters: Mapping[str, float]) -> float | None:
    """By our own counter; None where it did not grow: no mapped layers, or a server from before there was one.

    Counters come with snapshots, which lag behind; both of these are of the same one.

    Args:
        counters: growth of the series during the phase.
    """
    read, steps = counters.get(READ), counters.get(STEPS)
    return read / steps if read and steps else None


def sampled(phase: Mapping[str, Any], steps: float, link_gbs: float) -> float | None:
    """By NVML's samples of PCIe traffic, roughly; None where there are none.

    NVML counts whatever the link transfers, headers too: where a mapped layer is read without a pause it says 60 to 64
    GB/s of an H200's link, which is the raw rate of PCIe 5.0 x16 (63.0), while a plain read kernel gets 51.3 GB/s. So
    its bytes are taken times the one over the other. What correction promoted meanwhile came over the same link and is
    taken off.

    Args:
        phase: as the result has it.
        steps: decode steps of the phase.
        link_gbs: GB/s that plain reads reach.
    """
    gpu = phase.get("gpu") or {}
    mean, link = (gpu.get("pcie_to_gpu_gb_per_s") or {}).get("mean"), gpu.get("link")
    if mean is None or not link or link["generation"] not in TRANSFERS or not steps > 0:
        return None
    raw = TRANSFERS[link["generation"]] * link["width"] * 128 / 130 / 8
    payload = mean * 1e9 * phase["phase_seconds"] * min(1.0, link_gbs / raw)
    return max(0.0, payload - phase.get("counters", {}).get(PROMOTED, 0.0)) / steps
