"""The table of kernel speeds in HOW-IT-WORKS.md, and the numbers below it, are those that the result files give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "HOW-IT-WORKS.md").read_text()


def rows(result: dict[str, Any]) -> list[str]:
    """A line for each number of tokens of the base tier."""
    lines, stock = [], result["ratio_to_stock"]
    for entry in (entry for entry in result["tokens"] if entry["tier"] == "base"):
        times, shares = entry["microseconds"], entry["share_of_ceiling"]
        gemms = " | ".join(f"{times[name]:.0f} us | {100 * shares[name]:.0f}%" for name in ("gemm13", "gemm2"))
        ratio = stock[str(entry["tokens"])]["ratio"]
        lines.append(f"| {entry['tokens']} | {gemms} | {times['chain']:.0f} us | {ratio:.2f} |")
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


def test_what_the_text_says_of_the_profile_and_of_whole_steps() -> None:
    """Each number of the paragraphs below the table, by the words that stand beside it."""
    text = " ".join(TEXT.split())
    counters = json.loads((ROOT / "bench/results/kernels_counters_h200.json").read_text())["kernels"]
    few = next(one for one in counters if one["tokens"] == 8 and "13" in one["kernel"])
    many = next(one for one in counters if one["tokens"] == 2048 and "13" in one["kernel"])
    assert f"issue in {few['issue_slots_busy_percent']:.0f}% of all cycles" in text
    assert f"ALU pipe is {few['alu_percent']:.0f}% busy, memory {few['memory_percent']:.0f}%" in text
    assert f"tensor cores are {many['tensor_percent']:.0f}% busy" in text
    rates = json.loads((ROOT / "bench/results/decode_rate_h200.json").read_text())
    one, four = (rates["ours_over_stock"]["ours-0-mapped"][count]["decode_tokens_per_s"] for count in ("1", "4"))
    assert f"{one:.2f} times stock's tokens a second for one request, {four:.2f} for four" in text
