"""One row of the card: python -m demo.evaluate_variant VARIANT [--count N] [--out FILE]

Serves the demo checkpoint with the experts of a variant and asks the held-out questions through the API:

    stock    vLLM's own MXFP4 experts
    w2       2-bit experts
    fp4      2-bit experts, every one of them corrected: a pool as large as there are experts, filled before the first
             question

Exit status: 0 measured, 1 the pool was not full when it should have been.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import facts
from demo import evaluate_serving
from moet_w2.correction import trace
from moet_w2.correction.manager import WARM_FILE

KINDS = {"arithmetic": 200, "plain call": 40, "call": 40}
SETTLE_SECONDS = 5.0


def ask(url: str, count: int | None) -> dict[str, Any]:
    """Every kind's result as demo.evaluate_server reports it."""
    results = {}
    for kind, number in KINDS.items():
        command = [sys.executable, "-m", "demo.evaluate_server", "--base-url", url, "--kind", kind, "--json"]
        command += ["--count", str(count or number)]
        done = subprocess.run(command, cwd=evaluate_serving.ROOT, stdout=subprocess.PIPE, text=True, check=True)
        results[kind] = json.loads(done.stdout)
        del results[kind]["kind"]
    return results


def serve(variant: str, folder: Path, count: int | None) -> dict[str, Any]:
    """Serve a variant and ask; with ``fp4`` also what the correction did."""
    if variant != "fp4":
        with evaluate_serving.server(folder, {}, stock=variant == "stock") as url:
            return {"kinds": ask(url, count)}
    pack = evaluate_serving.whole_pack(folder / "store")
    everybody = [[layer, expert] for layer in range(pack.key.layers) for expert in range(pack.key.geometry.experts)]
    (pack.directory / WARM_FILE).write_text(json.dumps(everybody))
    settings = {
        "VLLM_MOE_W2_DELTA_GB": "auto",
        "VLLM_MOE_W2_STORE_DIR": str(folder / "store"),
        "VLLM_MOE_W2_TRACE": str(folder / "trace"),
    }
    with evaluate_serving.server(folder, settings, engine={"load-format": "moet"}) as url:
        kinds = ask(url, count)
        time.sleep(SETTLE_SECONDS)
    totals = trace.load(folder / "trace").totals
    hit_rate = totals["hits"] / totals["routings"]
    return {"kinds": kinds, "experts": len(everybody), "promotions": totals["promotions"], "hit_rate": hit_rate}


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m demo.evaluate_variant", description=__doc__.splitlines()[0])
    parser.add_argument("variant", choices=("stock", "w2", "fp4"))
    parser.add_argument("--count", type=int, help="questions of each kind (default: 200, 40 and 40)")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        result = {"variant": options.variant, **serve(options.variant, Path(folder), options.count)}
    for kind, found in result["kinds"].items():
        print(f"{kind}: {found['right']} of {found['count']} right")
    if options.out is not None:
        facts.write(options.out, result)
    if options.variant == "fp4" and result["hit_rate"] < 1:
        print(f"evaluate_variant: only {result['hit_rate']:.2%} of the routings were corrected", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
