"""Whether DSpark changes what greedy decoding gives: the same prompts with and without it, token by token.

    python bench/dspark_equality.py [--layers N] [--prompts N] [--tokens N] [--out FILE]

Eight layers of DeepSeek-V4-Flash at their real widths and three draft layers, weights computed from a seed, one target
and one draft layer mapped. Two engines, one after the other, each in a process of its own: with speculation, and
without. The one without answers twice, several prompts at a time and one at a time: what these two runs differ by is
the noise of rounding between batch shapes, for a verification is a step of another shape too.

Where outputs differ, the first token that does is looked up in the run without speculation: how much less likely it
was there than the one that was taken. A difference whose margin lies within that noise is a near tie that rounding
decided; any other is a fault, and the exit status is 1.

Needs a CUDA GPU with some 60 GB, and five minutes where everything is compiled. ``--only`` runs one side for a later
command on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import facts
import full_model
from decode_rate import ENGINE, ENVIRONMENT

WORK = facts.ROOT / ".native" / "dspark-equality"
SIDES = ("plain", "dspark")
PROMPTS, TOKENS, TOGETHER = 100, 64, 4
LENGTHS = (24, 600)
"""Shortest and longest prompt."""
TOP = 8
"""Alternatives whose log-probability is kept for each token."""
SPECULATIVE = {"method": "dspark", "num_speculative_tokens": full_model.BLOCK, "draft_sample_method": "greedy"}
SEED = 3


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Random token ids, of lengths that are spread over :data:`LENGTHS`."""
    noise = random.Random(SEED)
    lengths = [LENGTHS[0] + number * (LENGTHS[1] - LENGTHS[0]) // max(1, count - 1) for number in range(count)]
    return [[noise.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def answer(model: str, side: str, count: int, tokens: int, engine: dict[str, Any]) -> dict[str, Any]:
    """One engine's answers to every prompt, and for the side without speculation those to one prompt at a time."""
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    options = engine | ({"speculative_config": SPECULATIVE} if side == "dspark" else {})
    llm = LLM(model, quantization="moet_w2", disable_log_stats=False, **options)
    ready = time.perf_counter() - start
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    asked = [{"prompt_token_ids": prompt} for prompt in prompts(count, vocabulary)]
    greedy = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, "detokenize": False}
    sampling = SamplingParams(**greedy, **({} if side == "dspark" else {"logprobs": TOP}))

    def generate(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        outputs = llm.generate(batch, sampling, use_tqdm=False)
        return [of_output(output.outputs[0]) for output in outputs]

    began = time.perf_counter()
    answers = {"together": generate(asked)}
    seconds = time.perf_counter() - began
    if side == "plain":
        answers["alone"] = [generate([one])[0] for one in asked]
    return {"ready_seconds": ready, "seconds": seconds, "answers": answers, "counters": counters(llm)}


def of_output(output: Any) -> dict[str, Any]:
    """Tokens of a completion, and for each the log-probabilities of the likeliest ones where they were asked for."""
    likeliest = None
    if output.logprobs is not None:
        likeliest = [{str(token): one.logprob for token, one in entry.items()} for entry in output.logprobs]
    return {"tokens": list(output.token_ids), "logprobs": likeliest}


def counters(llm: Any) -> dict[str, Any]:
    """What vLLM counted of speculation."""
    found = {}
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name:
            value = getattr(metric, "value", None)
            found[metric.name] = getattr(metric, "values", None) if value is None else value
    return found


def noise(together: list[dict[str, Any]], alone: list[dict[str, Any]]) -> dict[str, Any]:
    """By how much log-probabilities of the same tokens after the same tokens differ between the two batch shapes."""
    differences = []
    for one, other in zip(together, alone, strict=True):
        for position in range(first_difference(one["tokens"], other["tokens"])):
            here, there = one["logprobs"][position], other["logprobs"][position]
            differences += [abs(here[token] - there[token]) for token in here.keys() & there.keys()]
    ordered = sorted(differences) or [0.0]
    return {
        "values": len(differences),
        "median": statistics.median(ordered),
        "p99": ordered[int(0.99 * (len(ordered) - 1))],
        "largest": ordered[-1],
    }


def compare(reference: list[dict[str, Any]], other: list[dict[str, Any]], largest: float) -> dict[str, Any]:
    """Prompts whose tokens differ, and why.

    Args:
        reference: answers with log-probabilities.
        other: answers to the same prompts.
        largest: the noise of a log-probability; a margin is the difference of two, so twice that explains it.
    """
    differences = []
    for number, (one, two) in enumerate(zip(reference, other, strict=True)):
        position = first_difference(one["tokens"], two["tokens"])
        if position == len(one["tokens"]) == len(two["tokens"]):
            continue
        margin = None
        if position < min(len(one["tokens"]), len(two["tokens"])):
            likeliest = one["logprobs"][position]
            taken, instead = str(one["tokens"][position]), str(two["tokens"][position])
            if instead in likeliest:
                margin = likeliest[taken] - likeliest[instead]
        explained = margin is not None and margin <= 2 * largest
        differences.append({"prompt": number, "position": position, "margin": margin, "near_tie": explained})
    return {
        "prompts": len(reference),
        "equal": len(reference) - len(differences),
        "near_ties": sum(difference["near_tie"] for difference in differences),
        "unexplained": sum(not difference["near_tie"] for difference in differences),
        "differences": differences,
    }


def first_difference(one: list[int], other: list[int]) -> int:
    """The first position at which two sequences differ, or the length of the shorter one."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(one), len(other)))


def conclude(plain: dict[str, Any], dspark: dict[str, Any]) -> dict[str, Any]:
    """The result of both sides."""
    together, alone = plain["answers"]["together"], plain["answers"]["alone"]
    measured = noise(together, alone)
    drafts = dspark["counters"].get("vllm:spec_decode_num_drafts", 0)
    accepted = dspark["counters"].get("vllm:spec_decode_num_accepted_tokens", 0)
    tokens = {token for one in together for token in one["tokens"]}
    return {
        "distinct_tokens": len(tokens),
        "noise_of_logprobs_between_batch_shapes": measured,
        "dspark_against_plain": compare(together, dspark["answers"]["together"], measured["largest"]),
        "plain_alone_against_together": compare(together, alone, measured["largest"]),
        "acceptance": {**dspark["counters"], "tokens_per_step": 1 + accepted / drafts if drafts else None},
        "seconds": {"plain": plain["seconds"], "dspark": dspark["seconds"]},
        "ready_seconds": {"plain": plain["ready_seconds"], "dspark": dspark["ready_seconds"]},
    }


def run(side: str, args: argparse.Namespace) -> dict[str, Any]:
    """A side in a process of its own, or what an earlier command left of it."""
    left = WORK / f"{side}.json"
    if not left.exists():
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
        mapped = [args.layers - 1] + ([args.layers + full_model.DRAFTS - 1] if side == "dspark" else [])
        own = {"VLLM_MOE_W2_MAPPED_LAYERS": ",".join(map(str, mapped))}
        command = [sys.executable, __file__, "--child", side, "--prompts", str(args.prompts)]
        command += ["--tokens", str(args.tokens), "--engine", args.engine]
        subprocess.run(command, env=kept | ENVIRONMENT | own, check=True)
    return json.loads(left.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description="greedy decoding with DSpark against without")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--only", choices=SIDES, help="run one side only, for a later run")
    parser.add_argument("--engine", default="{}", help="engine options to change, as JSON")
    parser.add_argument("--out", type=Path, help="write a result file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    engine = ENGINE | {"load_format": "moet_synthetic", "max_num_seqs": TOGETHER} | json.loads(args.engine)
    if args.child:
        found = answer(str(WORK / "model"), args.child, args.prompts, args.tokens, engine)
        (WORK / f"{args.child}.json").write_text(json.dumps(found))
        return
    full_model.write(WORK / "model", full_model.config(args.layers))
    sides = {side: run(side, args) for side in SIDES if args.only in (None, side)}
    if args.only:
        return
    result = {
        "benchmark": "dspark_equality",
        "weights": f"computed from seed {engine['seed']}; 43 layers in the real model",
        "layers": args.layers,
        "draft_layers": full_model.DRAFTS,
        "tokens": args.tokens,
        "prompt_lengths": LENGTHS,
        "engine": engine,
        "speculative": SPECULATIVE,
        **conclude(*sides.values()),
    }
    shown = {name: value for name, value in result.items() if name != "engine"}
    print(json.dumps(shown, indent=2))
    if args.out:
        facts.write(args.out, result)
    shutil.rmtree(WORK)
    if result["dspark_against_plain"]["unexplained"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
