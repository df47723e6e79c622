"""The FP4 correction tier at the real geometry on one GPU: what it costs a step, and how fast slots fill.

    python bench/correction.py [--layers N] [--seconds N] [--out FILE]

A step is the expert operator over all layers in one CUDA graph, with a skewed popularity that drifts. 512 slots of
12 MiB (6 GiB) are filled from a pack while steps run, then blocks of steps with and without the manager alternate in
this one run. Three questions:

    promotion      bytes a second that reach slots beside running steps, and of the parts: pack with CRC, copy alone
    overhead       time of a step with the manager against without, and GPU time between steps that the manager adds:
                   settled, and with so short a memory that experts move all the time
    waiting        host time in a boundary; CUDA calls inside boundaries, by the profiler: none may synchronise

The pack is a small file of distinct rows that stand for all experts; it is read from the page cache, not from a disk.
About a minute; 80 GiB of GPU memory with 43 layers. Exit status 1 where the manager costs 1% of a step or more, or a
boundary synchronises.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import facts
import numpy
import torch
from correction_steps import BLOCK, DISTINCT_ROWS, GEOMETRY, TOKENS, TOP_K, FewRows, Steps

from moet_w2.cache.key import CacheKey
from moet_w2.correction.manager import COUNT_STEPS, MOST_MOVES, WARM_FILE, Manager
from moet_w2.correction.pool import Pool
from moet_w2.correction.store import Pack
from moet_w2.correction.transfer import Passed
from moet_w2.layer import Shard

SLOTS = 512
MOST_OVERHEAD = 0.01
MOVING_HALF_LIFE = 0.25
"""Seconds: so short a memory that chance alone keeps experts moving, for the cost of a manager that never rests."""
SYNCHRONISING = ("Synchronize", "cudaMemcpy ", "cudaFree", "cudaMalloc", "cudaHostAlloc")


class Spanned:
    """A manager whose boundaries the profiler sees as spans."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def boundary(self) -> None:
        with torch.profiler.record_function("boundary"):
            self._manager.boundary()


def fill_slots(steps: Steps, manager: Manager) -> dict[str, Any]:
    """Start the manager and run steps until the pool is full: the rate at which rows arrive."""
    started = time.perf_counter()
    manager.start()
    count = 0
    while manager.metrics().totals.promotions < SLOTS:
        steps.run(manager)
        count += 1
        if time.perf_counter() - started > 40:
            raise SystemExit("correction: slots do not fill")
    seconds = time.perf_counter() - started
    nbytes = manager.metrics().totals.bytes_read
    return {"slots": SLOTS, "bytes": nbytes, "seconds": seconds, "gb_per_s": nbytes / seconds / 1e9, "steps": count}


def parts_alone(pool: Pool, pack: Pack) -> dict[str, float]:
    """GB/s of reading rows with their CRC, and of copying rows to slots, nothing else running."""
    staging = pool.transfer.buffer(pack.row_bytes, dtype=torch.uint8)
    started = time.perf_counter()
    for expert in range(DISTINCT_ROWS):
        pack.read(0, expert, staging)
    read = DISTINCT_ROWS * pack.row_bytes / (time.perf_counter() - started)
    started = time.perf_counter()
    marks = [pool.transfer.fill(pool.rows[slot], staging, Passed()) for slot in range(DISTINCT_ROWS)]
    marks[-1].wait()
    copied = DISTINCT_ROWS * pack.row_bytes / (time.perf_counter() - started)
    return {"read_and_crc_gb_per_s": read / 1e9, "copy_gb_per_s": copied / 1e9}


def boundary_calls(steps: Steps, manager: Manager, folder: Path) -> dict[str, int] | None:
    """CUDA runtime calls that the running thread makes inside boundaries, by the profiler; None where it sees none."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(4 * COUNT_STEPS):
            steps.run(Spanned(manager))
        torch.cuda.synchronize()
    path = folder / "profile.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    spans = [e for e in events if e.get("name") == "boundary" and e.get("cat") == "user_annotation"]
    calls: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            inside = (s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"] for s in spans)
            calls[event["name"]] += any(inside)
    return {name: number for name, number in sorted(calls.items()) if number} if spans and calls else None


def overhead(steps: Steps, manager: Manager, seconds: float) -> dict[str, Any]:
    """Blocks without and with the manager in turn, for so many seconds: medians over pairs of blocks."""
    pairs, stop = [], time.perf_counter() + seconds
    before = manager.metrics().totals
    while time.perf_counter() < stop or len(pairs) < 5:
        order = (None, manager) if len(pairs) % 2 == 0 else (manager, None)
        blocks = {which is not None: steps.block(which) for which in order}
        pairs.append((blocks[False], blocks[True]))
    after = manager.metrics().totals
    boundary = numpy.array([second for _, on in pairs for second in on["boundary"]]) * 1e6
    off_ms = statistics.median(off["step_ms"] for off, _ in pairs)
    added_gap = statistics.median(on["gap_ms"] - off["gap_ms"] for off, on in pairs)
    return {
        "pairs_of_blocks": len(pairs),
        "steps_in_a_block": BLOCK,
        "step_ms_without": off_ms,
        "step_ms_with": statistics.median(on["step_ms"] for _, on in pairs),
        "overhead": statistics.median(on["step_ms"] / off["step_ms"] - 1 for off, on in pairs),
        "overhead_quartiles": statistics.quantiles((on["step_ms"] / off["step_ms"] - 1 for off, on in pairs), n=4),
        "gpu_ms_between_steps_added": added_gap,
        "gpu_share_between_steps_added": added_gap / off_ms,
        "promotions_a_step": (after.promotions - before.promotions) / (len(pairs) * BLOCK),
        "hit_rate": (after.hits - before.hits) / (after.routings - before.routings),
        "boundary_us": {
            "median": float(numpy.median(boundary)),
            "p99": float(numpy.quantile(boundary, 0.99)),
            "most": float(boundary.max()),
            "share_of_step": float(boundary.mean() / 1e3 / off_ms),
        },
    }


def measure(layers: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Everything, in order."""
    key = CacheKey("generated", GEOMETRY, Shard(), layers)
    pack = FewRows(folder, key)
    pool = Pool(layers, GEOMETRY.experts, SLOTS, pack.row_bytes, torch.device("cuda", 0))
    alone = parts_alone(pool, pack)
    steps = Steps(layers, pool)
    hottest = numpy.argsort(-steps.popularity.ravel(), kind="stable")[:SLOTS]
    warm = [divmod(int(index), GEOMETRY.experts) for index in hottest]
    (pack.directory / WARM_FILE).write_text(json.dumps(warm))
    pool.counts.zero_()
    manager = Manager(pool, pack, numpy.ones(layers, dtype=bool))
    filling = fill_slots(steps, manager)
    for _ in range(4):
        steps.block(manager)
    settled = overhead(steps, manager, seconds / 2)
    manager.half_life = MOVING_HALF_LIFE
    for _ in range(4):
        steps.block(manager)
    moving = overhead(steps, manager, seconds / 2)
    calls = boundary_calls(steps, manager, folder)
    manager.close()
    torch.cuda.synchronize()
    wrong = wrong_rows(pool, pack)
    totals = manager.metrics().totals
    pack.close()
    return {
        "geometry": {"layers": layers, **asdict(GEOMETRY), "tokens": TOKENS, "top_k": TOP_K},
        "pool": {"slots": SLOTS, "row_bytes": pack.row_bytes, "bytes": pool.rows.nbytes},
        "manager": {"count_steps": COUNT_STEPS, "most_moves": MOST_MOVES},
        "pack": f"{DISTINCT_ROWS} distinct rows, from the page cache",
        "filling_beside_steps": filling,
        "parts_alone": alone,
        "steady_state": settled,
        "moving": {"half_life": MOVING_HALF_LIFE, **moving},
        "cuda_calls_in_boundaries": calls,
        "rows_that_are_not_the_pack's": wrong,
        "read_errors": totals.read_errors,
    }


def wrong_rows(pool: Pool, pack: Pack) -> int:
    """Resident rows that are not the pack's, all compared."""
    wrong, row = 0, torch.empty(pack.row_bytes, dtype=torch.uint8)
    for layer, expert in (pool.table >= 0).nonzero().tolist():
        pack.read(layer, expert, row)
        wrong += not torch.equal(pool.rows[pool.table[layer, expert]].cpu(), row)
    return wrong


def verdict(results: dict[str, Any]) -> list[str]:
    """What does not hold."""
    calls, problems = results["cuda_calls_in_boundaries"], []
    for regime in ("steady_state", "moving"):
        cost = results[regime]["overhead"]
        if cost >= MOST_OVERHEAD:
            problems.append(f"the manager costs {cost:.2%} of a step ({regime})")
    if not results["moving"]["promotions_a_step"]:
        problems.append("nobody moved, so the run does not show what moving costs")
    if calls is None:
        problems.append("the profiler saw no CUDA calls")
    for name in calls or ():
        if any(word in f"{name} " for word in SYNCHRONISING):
            problems.append(f"a boundary calls {name}")
    if results["rows_that_are_not_the_pack's"] or results["read_errors"]:
        problems.append("slots do not hold the pack's rows")
    return problems


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=43)
    parser.add_argument("--seconds", type=float, default=20, help="of steady state")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options.layers, options.seconds, Path(folder))
    problems = verdict(results)
    results["holds"] = not problems
    print(json.dumps(results, indent=2))
    for problem in problems:
        print(f"correction: {problem}", file=sys.stderr)
    if options.out is not None:
        facts.write(options.out, results)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
