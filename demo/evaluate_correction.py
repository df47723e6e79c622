"""What FP4 correction gives back, by pool size: python -m demo.evaluate_correction [--out FILE.json]

Reads held-out conversations with their reference answers and compares the log-probabilities of the answers' tokens with
those of vLLM's own MXFP4 experts, once with none of the experts corrected and then with more and more slots. One
engine serves all pool sizes: its manager is told to use so many slots, answers questions until they are filled, and
then reads the conversations. A chart (PNG) is drawn beside FILE.json. Half an hour on two busy cores.
Exit status: 0 the full pool is within the tolerance, 1 it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import facts
from demo import evaluate_serving
from demo.make import held_out

KINDS = ("arithmetic", "plain call", "call")
SLOTS = (0, 16, 32, 64, 96, 128, 192, 256)
ROUNDS = 8
"""Rounds of questions at most until a pool is full; experts that no question routes to stay out."""

MEAN, MOST, SHARE = 0.0005, 0.005, 0.99
"""Tolerance of the full pool: log-probabilities of answer tokens differ from the stock experts' by less than MEAN nats
on average, and by less than MOST in SHARE of all tokens. The weights are the same; what differs is how sums are
rounded. 2-bit experts alone are beyond both.
"""


def compare(found: list[float], stock: list[float]) -> dict[str, float]:
    """Distances of two lists of log-probabilities of the same tokens, in nats."""
    distances = sorted(abs(a - b) for a, b in zip(found, stock, strict=True))
    return {
        "mean_distance": statistics.mean(distances),
        "distance_at_99_percent": distances[int(SHARE * len(distances))],
        "most_distance": distances[-1],
        "mean_loss": -statistics.mean(found),
    }


def within(point: dict[str, Any]) -> bool:
    """Whether a comparison holds the tolerance."""
    return point["mean_distance"] < MEAN and point["distance_at_99_percent"] < MOST


def measure(count: int) -> dict[str, Any]:
    """Both engines, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        stock = _child(Path(folder), "stock", count)
        corrected = _child(Path(folder), "corrected", count)
    (reference,) = stock["points"]
    points = []
    for point in corrected["points"]:
        own = {name: value for name, value in point.items() if name not in ("logprobs", "exact")}
        right = sum(point["exact"]) / len(point["exact"])
        points.append(own | compare(point["logprobs"], reference["logprobs"]) | {"exact_answers": right})
    return {
        "conversations": len(reference["exact"]),
        "tokens": len(reference["logprobs"]),
        "stock": {
            "mean_loss": -statistics.mean(reference["logprobs"]),
            "exact_answers": sum(reference["exact"]) / len(reference["exact"]),
        },
        "tolerance": {"mean": MEAN, "most": MOST, "share": SHARE},
        "points": points,
        "holds": within(points[-1]) and points[-1]["resident"] == points[-1]["slots"],
    }


def _child(folder: Path, which: str, count: int) -> dict[str, Any]:
    out = folder / f"{which}.json"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
    environment = kept | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if which == "corrected":
        environment |= {"VLLM_MOE_W2_DELTA_GB": "auto", "VLLM_MOE_W2_STORE_DIR": str(folder / "store")}
    command = [sys.executable, "-m", "demo.evaluate_correction", "--child", which, "--count", str(count)]
    with evaluate_serving.lock():
        subprocess.run([*command, "--out", str(out)], env=environment, cwd=evaluate_serving.ROOT, check=True)
    return json.loads(out.read_text())


def _serve(which: str, count: int, out: Path) -> None:
    """In a child: one engine, every pool size."""
    from tokenizers import Tokenizer
    from vllm import LLM, SamplingParams

    own = {"quantization": "moet_w2", "load_format": "moet"} if which == "corrected" else {}
    llm = LLM(
        str(evaluate_serving.CHECKPOINT),
        tokenizer_mode="deepseek_v4",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=1024,
        block_size=256,
        kv_cache_memory_bytes=1 << 28,
        **own,
    )
    coder = Tokenizer.from_file(str(evaluate_serving.CHECKPOINT / "tokenizer.json"))
    samples = [sample for kind in KINDS for sample in held_out.samples(kind, count)]
    texts = [[coder.encode(text, add_special_tokens=False).ids for text in (s.prompt(), s.reply())] for s in samples]
    prompts = [{"prompt_token_ids": prompt + reply} for prompt, reply in texts]
    questions = [{"prompt_token_ids": prompt} for prompt, _ in texts]
    scoring = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    asking = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)

    def read() -> dict[str, Any]:
        logprobs: list[float] = []
        exact = []
        for answer, (prompt, _) in zip(llm.generate(prompts, scoring, use_tqdm=False), texts, strict=True):
            tokens = [next(iter(entry.values())) for entry in answer.prompt_logprobs[len(prompt) :]]
            logprobs += [token.logprob for token in tokens]
            exact.append(all(token.rank == 1 for token in tokens))
        return {"logprobs": logprobs, "exact": exact}

    points = []
    if which == "stock":
        points.append(read())
    for slots in SLOTS if which == "corrected" else ():
        points.append({"slots": slots} | _filled(llm, questions, asking, slots, read))
    out.write_text(json.dumps({"points": points}))


def _filled(llm: Any, questions: list[Any], asking: Any, slots: int, read: Any) -> dict[str, Any]:
    """Let the manager use so many slots, ask until they are filled, and read."""
    from moet_w2 import runtime

    manager = runtime.get().correction.manager
    manager.rules = replace(manager.rules, capacity=slots)
    for _ in range(ROUNDS):
        if manager.metrics().resident >= slots:
            break
        llm.generate(questions, asking, use_tqdm=False)
    before = manager.metrics().totals
    found = read()
    after = manager.metrics()
    routings = after.totals.routings - before.routings
    return found | {"resident": after.resident, "hit_rate": (after.totals.hits - before.hits) / max(1, routings)}


def draw(result: dict[str, Any], path: Path) -> None:
    """The chart: distance from the stock experts by slots."""
    from moet_w2 import plot

    points = result["points"]
    series = {"mean distance": [(float(point["slots"]), point["mean_distance"]) for point in points]}
    tops = [1.1 * point["mean_distance"] for point in points]
    x = plot.axis("correction slots, of 256 experts", [point["slots"] for point in points], low=0.0)
    y = plot.axis("nats from the stock MXFP4 experts, answer tokens", tops, low=0.0)
    plot.lines(path, "What FP4 correction gives back", series, x, y, marks=True)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(prog="python -m demo.evaluate_correction", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=24, help="conversations of each kind")
    parser.add_argument("--out", type=Path, help="result file")
    parser.add_argument("--child", choices=("stock", "corrected"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        _serve(options.child, options.count, options.out)
        return 0
    result = measure(options.count)
    print(json.dumps(result, indent=1))
    if options.out is not None:
        facts.write(options.out, result)
        draw(result, options.out.with_suffix(".png"))
    if not result["holds"]:
        print("evaluate_correction: the full pool is not within the tolerance", file=sys.stderr)
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
