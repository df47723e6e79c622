"""Whether DSpark changes what greedy decoding gives: the same prompts with and without it, every token traced.

    python bench/dspark_equality.py [--layers N] [--prompts N] [--tokens N] [--alone N] [--out FILE]

Eight layers of DeepSeek-V4-Flash at their real widths and three draft layers, weights computed from a seed, one target
and one draft layer mapped. Two engines, one after the other, each in a process of its own: with speculation, and
without. The one without answers all prompts several at a time, and some of them one at a time. How many answers are
equal, token for token, is counted for DSpark and for these two.

A verification is a step of another shape than a decode, and rounding differs between shapes, so answers differ where
tokens nearly tie, and after that their contexts differ. So the engine without speculation is then asked about every
token of DSpark's answers in the context that DSpark took it in, in several shapes, and each token that is not its first
choice is traced to a cause (:mod:`greedy_trace` says how, and why so). Its own answers are traced in the same way, and
so are copies of them in which a wrong token was planted (:mod:`greedy_faults`).

The exit status is 1 where a token of DSpark's is wrong, where tokens that are not the first choice are more frequent
than in the engine's own answers, where nothing was speculated, and where planted tokens are not found.

Needs a CUDA GPU with some 60 GB, and five minutes where everything is compiled. Where a command may not run that long,
do it in two on the same machine, with the same other options: ``--only dspark``, then without ``--only``. What a
command that was cut off has finished lies in .native/dspark-equality, and the next one goes on from there.

``--tiny`` is a model that a CPU serves too. DSpark has no implementation there, and a CPU rounds alike in every shape:
so in DSpark's place stands the engine without it, and outputs of projections and norms, in both, are off by up to
:data:`rounding.RELATIVE`, otherwise in every step.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts
import full_model
import greedy_faults
import greedy_shapes
import greedy_trace
import rounding
from decode_rate import ENGINE, ENVIRONMENT, REAL
from greedy_trace import Floor
from tiny_engine import TINY, TINY_ENVIRONMENT, options

WORK = facts.ROOT / ".native" / "dspark-equality"
SIDES = ("dspark", "plain")
"""In this order: the second one is asked about the answers of the first."""
PROMPTS, TOKENS, TOGETHER, ALONE = 100, 32, 4, 30
LENGTHS = (24, 600)
"""Shortest and longest prompt."""
TOP = 8
"""Alternatives whose log-probability is kept for each token."""
SPECULATIVE = {"method": "dspark", "num_speculative_tokens": full_model.BLOCK, "draft_sample_method": "greedy"}
COUNTED = ("drafts", "accepted_tokens")
"""What vLLM calls vllm:spec_decode_num_*, of those that are looked at."""
SEED = 3


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Random token ids, of lengths that are spread over :data:`LENGTHS`."""
    noise = random.Random(SEED)
    lengths = [LENGTHS[0] + number * (LENGTHS[1] - LENGTHS[0]) // max(1, count - 1) for number in range(count)]
    return [[noise.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def answer(llm: Any, asked: list[list[int]], tokens: int, **sampling: Any) -> list[dict[str, Any]]:
    """Greedy answers of an engine to prompts that it is given at once."""
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **sampling)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in asked], greedy, use_tqdm=False)
    return [of_output(output.outputs[0]) for output in outputs]


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


def dspark_side(llm: Any, asked: list[list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """Answers with speculation, or of what stands for it, and what was counted."""
    began = time.perf_counter()
    answers = answer(llm, asked, args.tokens)
    seconds = {"dspark": time.perf_counter() - began}
    return {"seconds": seconds, "answers": answers, "counters": counters(llm)}


def plain_answers(llm: Any, asked: list[list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """Answers without speculation, several at a time and one at a time."""
    began = time.perf_counter()
    together = answer(llm, asked, args.tokens, logprobs=TOP)
    between = time.perf_counter()
    alone = [answer(llm, [prompt], args.tokens, logprobs=TOP)[0] for prompt in asked[: args.alone]]
    seconds = {"together": between - began, "alone": time.perf_counter() - between}
    return {"seconds": seconds, "together": together, "alone": alone}


def traces(
    asked: list[list[int]], dspark: list[dict[str, Any]], plain: dict[str, Any], vocabulary: int, llm: Any
) -> dict[str, Any]:
    """What the engine without speculation thinks of all answers: DSpark's, its own, and those with a planted token."""
    began = time.perf_counter()
    read, step = functools.partial(greedy_shapes.read, llm), functools.partial(greedy_shapes.step, llm)
    planted = greedy_faults.plant(plain["together"], vocabulary, SEED)

    def of(answers: list[dict[str, Any]], **how: Any) -> dict[str, Any]:
        tokens = [one["tokens"] for one in answers]
        return greedy_trace.trace(asked[: len(tokens)], tokens, read, step, **how)

    found = {
        "dspark": of(dspark),
        "together": of(plain["together"], made_in="decode together"),
        "alone": of(plain["alone"], made_in="decode alone"),
        "planted": greedy_trace.trace(
            [asked[one["answer"]] for one in planted], [one["tokens"] for one in planted], read, step, last=True
        ),
    }
    return {"seconds": {"trace": time.perf_counter() - began}, "planted": planted, "found": found}


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


def differences(reference: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prompts whose tokens differ, where first, and by how many nats the other token is less likely there.

    Args:
        reference: answers with log-probabilities.
        other: answers to the same prompts.

    Returns:
        for each ``prompt``, ``position`` and ``margin``: None if an answer ends there or the other token is not listed.
    """
    found = []
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
        found.append({"prompt": number, "position": position, "margin": margin})
    return found


def first_difference(one: list[int], other: list[int]) -> int:
    """The first position at which two sequences differ, or the length of the shorter one."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(one), len(other)))


def compare(
    reference: list[dict[str, Any]], other: list[dict[str, Any]], traced: dict[str, Any], floor: Floor
) -> dict[str, Any]:
    """How many answers are equal, and for each difference what is said of the token that differs.

    Args:
        reference: answers with log-probabilities.
        other: answers to the same prompts.
        traced: :func:`greedy_trace.trace` of the latter.
        floor: of the engine's own answers.
    """
    words = {(one["answer"], one["position"]): greedy_trace.word(one, floor) for one in traced["suspects"]}
    found = differences(reference, other)
    for one in found:
        # What the engine takes where it reads the answer as a prompt, it took otherwise in the reference.
        word = words.get((one["prompt"], one["position"]), "order")
        one["word"] = word if one["position"] < len(other[one["prompt"]]["tokens"]) else "missing"
    return {"prompts": len(reference), "equal": len(reference) - len(found), "differences": found}


def conclude(dspark: dict[str, Any], plain: dict[str, Any], tokens: int, speculating: bool) -> dict[str, Any]:
    """The result of both sides, with ``problems``: one line for each thing that does not hold.

    Args:
        dspark: what :func:`dspark_side` has left.
        plain: what :func:`plain_answers` and :func:`traces` have.
        tokens: asked for, of each answer.
        speculating: whether the first side is to have speculated.
    """
    together, alone, found = plain["together"], plain["alone"], plain["found"]
    floor = Floor.of([found["together"], found["alone"]], found["planted"])
    drafts, accepted = (dspark["counters"].get(f"vllm:spec_decode_num_{name}", 0) for name in COUNTED)
    counted = greedy_faults.found(plain["planted"], found["planted"], floor)
    problems = greedy_trace.problems(found["dspark"], found["together"], floor) + greedy_faults.problems(counted)
    short = [number for number, one in enumerate(dspark["answers"]) if len(one["tokens"]) != tokens]
    problems += [f"answer {number} has not {tokens} tokens" for number in short]
    if speculating and not accepted:
        problems.append(f"{accepted} tokens of {drafts} drafts were accepted: nothing was speculated")
    return {
        "distinct_tokens": len({token for one in together for token in one["tokens"]}),
        "noise_of_logprobs_between_batch_shapes": noise(together[: len(alone)], alone),
        "dspark_against_plain": compare(together, dspark["answers"], found["dspark"], floor),
        "plain_alone_against_together": compare(together[: len(alone)], alone, found["alone"], floor),
        "noise_floor": dataclasses.asdict(floor),
        "traced": {name: greedy_trace.summary(one, floor) for name, one in found.items() if name != "planted"},
        "not_explained_by_shapes": {name: unexplained(one, floor) for name, one in found.items() if name != "planted"},
        "planted": counted,
        "acceptance": {**dspark["counters"], "tokens_per_step": 1 + accepted / drafts if drafts else None},
        "seconds": dspark["seconds"] | plain["seconds"],
        "ready_seconds": {"plain": plain["ready_seconds"], "dspark": dspark["ready_seconds"]},
        "problems": problems,
    }


def unexplained(traced: dict[str, Any], floor: Floor) -> list[dict[str, Any]]:
    """The tokens that only the bound lets pass, and those that nothing does."""
    return [one for one in traced["suspects"] if greedy_trace.word(one, floor) in ("noise", "wrong")]


def kept(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an earlier command left under a name, or what is made now and left for a later one."""
    path = WORK / f"{name}.json"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(make()))
        unfinished.replace(path)
    return json.loads(path.read_text())


def child(side: str, args: argparse.Namespace, engine: dict[str, Any]) -> None:
    """One side, in this process."""
    from vllm import LLM

    start = time.perf_counter()
    speculative = {"speculative_config": SPECULATIVE} if side == "dspark" and not args.tiny else {}
    model = WORK / "model"
    llm = LLM(str(model), quantization="moet_w2", disable_log_stats=False, **engine, **speculative)
    ready = {"ready_seconds": time.perf_counter() - start}
    if args.tiny:
        ready["perturbed_modules"] = sum(llm.apply_model(rounding.perturb))
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    asked = prompts(args.prompts, vocabulary)
    if side == "dspark":
        kept(side, lambda: ready | dspark_side(llm, asked, args))
        return
    plain = kept("answers", lambda: ready | plain_answers(llm, asked, args))
    dspark = json.loads((WORK / "dspark.json").read_text())["answers"]

    def whole() -> dict[str, Any]:
        found = traces(asked, dspark, plain, vocabulary, llm)
        return plain | found | {"seconds": plain["seconds"] | found["seconds"]}

    kept(side, whole)


def run(side: str, args: argparse.Namespace) -> dict[str, Any]:
    """A side in a process of its own, or what an earlier command left of it."""
    left = WORK / f"{side}.json"
    if not left.exists():
        others = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
        drafting = side == "dspark" and not args.tiny
        mapped = [args.layers - 1] + ([args.layers + full_model.DRAFTS - 1] if drafting else [])
        own = {"VLLM_MOE_W2_MAPPED_LAYERS": ",".join(map(str, mapped))}
        command = [sys.executable, __file__, "--child", side, *_passed(args)]
        subprocess.run(command, env=others | ENVIRONMENT | (TINY_ENVIRONMENT if args.tiny else {}) | own, check=True)
    return json.loads(left.read_text())


def _passed(args: argparse.Namespace) -> list[str]:
    named = ("layers", "prompts", "tokens", "alone", "engine")
    return [word for name in named for word in (f"--{name}", str(getattr(args, name)))] + ["--tiny"] * args.tiny


def hold_options(args: argparse.Namespace) -> None:
    """End where earlier commands measured with other options: a result must not mix the two."""
    WORK.mkdir(parents=True, exist_ok=True)
    path, given = WORK / "options.txt", shlex.join(_passed(args))
    if list(WORK.glob("*.json")) and (found := path.read_text()) != given:
        raise SystemExit(f"{WORK} holds what was measured with {found}; remove it, or give those options")
    path.write_text(given)


def main() -> None:
    parser = argparse.ArgumentParser(description="greedy decoding with DSpark against without")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--alone", type=int, default=ALONE, help="prompts that are also asked one at a time")
    parser.add_argument("--only", choices=SIDES, help="run one side only, for a later run")
    parser.add_argument("--engine", default="{}", help="engine options to change, as JSON")
    parser.add_argument("--tiny", action="store_true", help="small widths on a CPU, where rounding stands for DSpark")
    parser.add_argument("--out", type=Path, help="write a result file")
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    base = ENGINE | {"load_format": "moet_synthetic", "max_num_seqs": TOGETHER}
    engine = options(base, args.tiny, json.loads(args.engine))
    if args.child:
        child(args.child, args, engine)
        return
    hold_options(args)
    drafts = 0 if args.tiny else full_model.DRAFTS
    full_model.write(WORK / "model", full_model.config(args.layers, drafts, TINY if args.tiny else REAL))
    if args.only == "plain" and not (WORK / "dspark.json").exists():
        raise SystemExit("--only plain: it is asked about DSpark's answers; run --only dspark first")
    sides = {side: run(side, args) for side in SIDES if args.only in (None, side)}
    if args.only:
        return
    result = {
        "benchmark": "dspark_equality",
        "weights": f"computed from seed {engine['seed']}; 43 layers in the real model",
        "model": "widths of the demo checkpoint" if args.tiny else "real widths",
        "layers": args.layers,
        "draft_layers": drafts,
        "tokens": args.tokens,
        "prompt_lengths": LENGTHS,
        "engine": engine,
        "speculative": None if args.tiny else SPECULATIVE,
        "perturbed_modules": sides["plain"].get("perturbed_modules", 0),
        **conclude(sides["dspark"], sides["plain"], args.tokens, speculating=not args.tiny),
    }
    hidden = ("engine", "not_explained_by_shapes")
    print(json.dumps({name: value for name, value in result.items() if name not in hidden}, indent=2))
    if args.out:
        facts.write(args.out, result)
    shutil.rmtree(WORK)
    if result["problems"]:
        raise SystemExit("\n".join(result["problems"]))


if __name__ == "__main__":
    main()
