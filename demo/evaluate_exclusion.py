"""Excluded layers under load: python -m demo.evaluate_exclusion [--requests N] [--control] [--out FILE]

Serves the demo checkpoint with three of its four layers excluded from FP4 correction, so that three routings of four
fall on excluded layers, and a pool that the fourth can fill. The pack holds rows for every layer, but those of the
excluded ones are ruined: reading one is a read error. Many short requests later the routing trace and the warm set
say what was counted, moved, read and resident. With --control a second server excludes nothing, and must trip over
the ruined rows. Exit status: 0 it holds, 1 it does not.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import facts
from demo import evaluate_serving
from moet_w2.correction import trace
from moet_w2.correction.manager import read_warm_set
from moet_w2.correction.store import Pack
from moet_w2.correction.trace import Trace

EXCLUDED, ELIGIBLE = (0, 1, 2), (3,)
CONCURRENCY = 16
SETTLE_SECONDS = 3.0
"""Longer than the manager's idle time, after which it saves."""


def ruined_pack(store: Path) -> Pack:
    """A whole pack of the demo checkpoint; then other codes in the excluded layers' rows."""
    pack = evaluate_serving.whole_pack(store)
    for place, weight in evaluate_serving.expert_weights(EXCLUDED):
        pack.put(*place, ~weight)  # after the seal: the row is no longer what its CRC vouches for
    return pack


def ask(url: str, number: int) -> int:
    """One short question, drawn by its number; tokens that were computed."""
    draw = random.Random(number)
    text = f"What is {draw.randrange(100)} {draw.choice('+-')} {draw.randrange(100)}? " + "Be brief. " * draw.randrange(
        4
    )
    request = {
        "model": evaluate_serving.MODEL,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 3,
        "chat_template_kwargs": {"thinking": False},
    }
    body = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(body, timeout=300) as response:
        return json.load(response)["usage"]["total_tokens"]


def serve(folder: Path, pack: Pack, requests: int, slots: int, excluded: tuple[int, ...]) -> dict[str, Any]:
    """Serve so many requests; what :func:`judged` makes of the run."""
    settings = {
        "VLLM_MOE_W2_DELTA_GB": str((slots + 0.5) * pack.row_bytes / 2**30),
        "VLLM_MOE_W2_STORE_DIR": str(pack.directory.parent),
        "VLLM_MOE_W2_TRACE": str(folder / "trace"),
    }
    if excluded:
        settings["VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS"] = ",".join(map(str, excluded))
    engine = {"load-format": "moet", "max-num-seqs": CONCURRENCY}
    with evaluate_serving.server(folder, settings, engine=engine) as url:
        started = time.monotonic()
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            tokens = sum(pool.map(lambda number: ask(url, number), range(requests)))
        seconds = time.monotonic() - started
        time.sleep(SETTLE_SECONDS)
    found = judged(trace.load(folder / "trace"), read_warm_set(pack.directory))
    return {"requests": requests, "tokens": tokens, "seconds": round(seconds, 1), **found}


def judged(recorded: Trace, resident: list[tuple[int, int]]) -> dict[str, Any]:
    """What a run says of each layer: routings counted, rows promoted, experts resident at the end; and read errors."""
    layers, experts = recorded.header.layers, recorded.header.experts
    routings, promoted = [0] * layers, [0] * layers
    for window in recorded.windows:
        for flat, number in zip(window.experts.tolist(), window.routings.tolist(), strict=True):
            routings[flat // experts] += number
        for flat in window.promoted.tolist():
            promoted[flat // experts] += 1
    return {
        "routings_counted": routings,
        "rows_promoted": promoted,
        "experts_resident": [sum(layer == key for layer, _ in resident) for key in range(layers)],
        "read_errors": recorded.totals["read_errors"],
        "hit_rate": round(recorded.totals["hits"] / max(1, recorded.totals["routings"]), 4),
    }


def problems(found: dict[str, Any], slots: int) -> list[str]:
    """What does not hold of a run with exclusions and so many slots."""
    wrong = []
    for layer in EXCLUDED:
        for name in ("routings_counted", "rows_promoted", "experts_resident"):
            if found[name][layer]:
                wrong.append(f"excluded layer {layer}: {name} {found[name][layer]}")
    if found["read_errors"]:
        wrong.append(f"{found['read_errors']} ruined rows were read")
    counted = sum(found["routings_counted"][layer] for layer in ELIGIBLE)
    if counted < found["requests"]:
        wrong.append(f"only {counted} routings were counted on eligible layers")
    if sum(found["experts_resident"]) != slots:
        wrong.append(f"{sum(found['experts_resident'])} of {slots} slots are filled")
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Serve, judge, print, write."""
    parser = argparse.ArgumentParser(prog="python -m demo.evaluate_exclusion", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=48, help="of the pool; the eligible layer has 64 experts")
    parser.add_argument("--control", action="store_true", help="also serve a tenth of them without exclusions")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args(argv)
    result: dict[str, Any] = {"excluded_layers": EXCLUDED, "eligible_layers": ELIGIBLE, "slots": options.slots}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pack = ruined_pack(folder / "store")
        result["excluded"] = serve(folder / "run", pack, options.requests, options.slots, EXCLUDED)
        wrong = problems(result["excluded"], options.slots)
        if options.control:
            control = serve(folder / "control", pack, max(1, options.requests // 10), options.slots, ())
            result["control_without_exclusions"] = control
            if not control["read_errors"]:
                wrong.append("the control read no ruined row, so the run shows nothing")
    result["holds"] = not wrong
    print(json.dumps(result, indent=1))
    for line in wrong:
        print(f"evaluate_exclusion: {line}", file=sys.stderr)
    if options.out is not None:
        facts.write(options.out, result)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
