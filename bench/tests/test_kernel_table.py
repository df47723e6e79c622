"""The table of kernel speeds in HOW-IT-WORKS.md is the one that the result file gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "HOW-IT-WORKS.md").read_text()


def rows(result: dict[str, Any]) -> list[str]:
    """A line for each number of tokens of the base tier."""
    lines = []
    for entry in (entry for entry in result["tokens"] if entry["tier"] == "base"):
        times, shares = entry["microseconds"], entry["share_of_ceiling"]
        gemms = " | ".join(f"{times[name]:.0f} us | {100 * shares[name]:.0f}%" for name in ("gemm13", "gemm2"))
        lines.append(f"| {entry['tokens']} | {gemms} | {times['chain']:.0f} us |")
    return lines


def test_the_table_is_that_of_the_result() -> None:
    result = json.loads((ROOT / "bench/results/kernels_h200.json").read_text())
    wanted = rows(result)
    assert len(wanted) >= 10 and [row for row in wanted if row not in TEXT.splitlines()] == []


def test_another_result_would_not_fit() -> None:
    result = json.loads((ROOT / "bench/results/kernels_h200.json").read_text())
    for entry in result["tokens"]:
        entry["microseconds"]["chain"] *= 1.5
    assert [row for row in rows(result) if row not in TEXT.splitlines()]
