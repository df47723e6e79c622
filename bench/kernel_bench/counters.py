"""What the GPU's own counters say of the GEMMs: what keeps their warps from issuing. Needs Nsight Compute (``ncu``)."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import workload

SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "Occupancy")
SHOWN = {
    "microseconds": "gpu__time_duration.sum",
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue_slots_busy_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "alu_percent": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "fma_percent": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "warps_active_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Name in a record -> Nsight Compute's metric. One that this version of ``ncu`` does not collect is None."""
_MICROSECONDS = {"ns": 1e-3, "us": 1.0, "usecond": 1.0, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3}
"""Nsight Compute's units of time, which differ from version to version."""
_STALL = "smsp__average_warps_issue_stalled_"
_STALL_END = "_per_issue_active.ratio"


def measure(tokens: tuple[int, ...]) -> dict[str, Any]:
    """Run the chain at each token count under ``ncu``, in a process of its own.

    Returns:
        for each GEMM and token count what :data:`SHOWN` names, and ``stalls``: warps that wait for each reason,
        as a mean number per instruction issued (Nsight Compute's guide, "Warp State Statistics"), largest first.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("bench/kernels.py counters needs ncu (Nsight Compute) on PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        command = [ncu, "--csv", "--page", "raw", "--log-file", str(log), "--clock-control", "none"]
        command += [word for section in SECTIONS for word in ("--section", section)]
        command += ["--metrics", ",".join(SHOWN.values()), "--kernel-name", "regex:moet_(decode|prefill)"]
        command += [sys.executable, sys.argv[0], "counters", "--child", "--tokens", ",".join(map(str, tokens))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = log.read_text() if log.exists() else ""
        if done.returncode or '"ID"' not in text:
            raise SystemExit(f"ncu gave no counters: {(text + done.stdout + done.stderr).strip()[-600:]}")
    return {"kernels": records(text, tokens)}


def run(tokens: tuple[int, ...]) -> None:
    """What is looked at: one call of each token count, two GEMMs each, in this order."""
    layers = workload.random_layers(1)
    for count in tokens:
        workload.chains(count, layers, count=1)[0].run()


def records(text: str, tokens: tuple[int, ...]) -> list[dict[str, Any]]:
    """Nsight Compute's CSV as records; it has a row of units below its header.

    Raises:
        SystemExit: the rows are not two GEMMs for each token count.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    units, *rows = csv.DictReader(lines)
    if len(rows) != 2 * len(tokens):
        raise SystemExit(f"ncu saw {len(rows)} GEMMs, expected two for each of {len(tokens)} token counts")
    return [_record(row, units, tokens[number // 2]) for number, row in enumerate(rows)]


def _record(row: dict[str, str], units: dict[str, str], tokens: int) -> dict[str, Any]:
    found: dict[str, Any] = {"tokens": tokens, "kernel": row["Kernel Name"].partition("(")[0]}
    for name, metric in SHOWN.items():
        found[name] = _number(row.get(metric, ""))
    if found["microseconds"] is not None:
        found["microseconds"] *= _MICROSECONDS[units[SHOWN["microseconds"]]]
    stalls = {
        metric.removeprefix(_STALL).removesuffix(_STALL_END): value
        for metric, text in row.items()
        if metric.startswith(_STALL) and metric.endswith(_STALL_END) and (value := _number(text))
    }
    found["stalls"] = dict(sorted(stalls.items(), key=lambda one: -one[1]))
    found["other"] = {name: _number(text) for name, text in row.items() if "__" in name and _wanted(name)}
    return found


def _wanted(metric: str) -> bool:
    return metric not in SHOWN.values() and "pipe" in metric and metric.endswith(".avg.pct_of_peak_sustained_active")


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def print_record(one: dict[str, Any]) -> None:
    """A line for a person."""
    shown = ", ".join(f"{name} {value:.1f}" for name in SHOWN if (value := one[name]) is not None)
    stalls = ", ".join(f"{name} {value:.2f}" for name, value in list(one["stalls"].items())[:5])
    print(f"{one['tokens']} tokens, {one['kernel']}: {shown}; stalled: {stalls}", flush=True)
