"""Tensor parallelism: planes of two GPUs against those of one, and what both answer to the same prompts.

    python bench/tensor_parallel.py [--layers N] [--mapped N] [--prompts N] [--tokens N] [--control] [--out FILE]

Eight layers of DeepSeek-V4-Flash at their real widths, weights computed from a seed (the same at every size), the last
two mapped, correction off (it is refused with tensor parallelism), no speculation. An engine on one GPU, then one on
two, each in a process of its own, decode the same prompts greedily. One GPU answers twice, several prompts at a time
and one at a time: what these two runs differ by is the noise of rounding between batch shapes.

How equal: a rank adds up its half of each projection, rounds it to bfloat16, and the halves are added in bfloat16,
where one GPU rounds once; activations are then cut to FP8, so a rounding that differs becomes one of e4m3, and a
router's near tie may send a token to another expert, which few tokens feel and those much. So :data:`TOLERANCE` bounds
the middle and the bulk of how far log-probabilities of a token in the same context lie apart, not the largest, and the
first token of a prompt that differs must have been a near tie on one GPU. A model that is put together wrongly is off
as a whole: ``--control`` also runs two GPUs whose routed experts count half, as if one rank's sums were lost, and that
must break the tolerance.

Planes: every rank must hold exactly half of the bytes of each layer, mapped ones in host memory, none twice, by the
audits that both write. Exit status 1 where anything of this does not hold.

Needs two CUDA GPUs of one kind with some 40 GB each, and five minutes where kernels are compiled. ``--only`` runs one
side for a later command on the same machine. ``--tiny`` is a model that a CPU serves too, a core a rank.

Ranks add through NCCL alone: custom, FlashInfer's and symmetric-memory all-reduce need peer access or NVLink
multicast, which virtual machines often lack.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import facts
import full_model
from decode_rate import ENGINE, ENVIRONMENT, REAL
from dspark_equality import TOGETHER, TOP, differences, first_difference, noise, of_output, prompts
from tiny_engine import TINY, TINY_ENVIRONMENT, options

from moet_w2 import audit, audit_ranks

WORK = facts.ROOT / ".native" / "tensor-parallel"
SIDES = {"one": 1, "two": 2, "control": 2}
"""Engines by name, with their GPUs."""
PROMPTS, TOKENS = 32, 32
TOLERANCE = {"median": 0.1, "p90": 0.6}
"""Nats between log-probabilities of the same token on one and on two GPUs.

Between what rounding and what the planted fault do to a tiny model on a CPU (bench/results/tensor_parallel_cpu.json):
some six times the one, and a fraction of the other. Since projections into the residual stream are four times smaller
(:data:`moet_w2.synthetic.RESIDUAL_BITS`), rounding does 0.0005 and 0.03 there, and the fault 0.14 and 0.47: the median
tells them apart.
"""
NCCL_ALONE = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
}
PASSES = {"pass_config": {"fuse_allreduce_rms": False}}
"""A fused all-reduce would be FlashInfer's."""


def answer(model: str, size: int, count: int, tokens: int, engine: dict[str, Any]) -> dict[str, Any]:
    """Answers of one engine to every prompt; of one GPU also those to one prompt at a time."""
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    llm = LLM(model, quantization="moet_w2", tensor_parallel_size=size, **engine)
    ready = time.perf_counter() - start
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    asked = [{"prompt_token_ids": prompt} for prompt in prompts(count, vocabulary)]
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=TOP)

    def generate(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [of_output(output.outputs[0]) for output in llm.generate(batch, sampling, use_tqdm=False)]

    began = time.perf_counter()
    answers = {"together": generate(asked)}
    seconds = time.perf_counter() - began
    if size == 1:
        answers["alone"] = [generate([one])[0] for one in asked]
    return {"ready_seconds": ready, "seconds": seconds, "answers": answers}


def planes(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether each rank of two holds exactly half of every layer where one GPU holds all of it.

    Args:
        one: the audit of one GPU, as :func:`moet_w2.audit_ranks.load` gives it.
        two: the audits of two ranks.

    Returns:
        bytes of each rank, and ``problems``: one line for each rule that is broken.
    """
    whole, problems = one[0], [*audit_ranks.differences(two)]
    for document in (*one, *two):
        problems += audit.violations(document)
        if document["state"] != "ready":
            problems.append(f"audit: state is {document['state']}")
    for rank, document in enumerate(two):
        for name in ("w2_bytes", "mapped_bytes"):
            if document[name] * len(two) != whole[name]:
                problems.append(f"{name} of rank {rank}: {document[name]}, expected {whole[name]} / {len(two)}")
        for mine, all_of_it in zip(document["layers"], whole["layers"], strict=True):
            if mine["bytes"] * len(two) != all_of_it["bytes"] or mine["placement"] != all_of_it["placement"]:
                problems.append(f"layer {mine['key']} of rank {rank}: {mine['bytes']} bytes, {mine['placement']}")
    known = [document["device"]["pci"] for document in two if document["device"]["pci"]]  # where a layer is mapped
    if len(set(known)) < len(known):
        problems.append("two ranks share one GPU")
    return {
        "one_gpu": _placed(whole),
        "ranks": [_placed(document) for document in two],
        "problems": problems,
    }


def _placed(document: dict[str, Any]) -> dict[str, Any]:
    kept = ("w2_bytes", "mapped_bytes", "redundant_gpu_w2_bytes", "allocated_mapped_layers", "tensor_parallel")
    return {name: document[name] for name in kept} | {"pci": document["device"]["pci"]}


def distances(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, Any]:
    """How far log-probabilities of a token lie apart where all tokens before it are the same: quantiles, in nats."""
    found = []
    for one, other in zip(first, second, strict=True):
        same = first_difference(one["tokens"], other["tokens"])
        for here, there in zip(one["logprobs"][: same + 1], other["logprobs"][: same + 1], strict=True):
            found += [abs(here[token] - there[token]) for token in here.keys() & there.keys()]
    ordered = sorted(found) or [0.0]
    quantiles = {"median": 0.5, "p90": 0.9, "p99": 0.99, "largest": 1.0}
    return {"values": len(found)} | {name: ordered[int(part * (len(ordered) - 1))] for name, part in quantiles.items()}


def beyond(apart: dict[str, Any]) -> list[str]:
    """One line for each quantile that is larger than :data:`TOLERANCE` allows, and for nothing to compare."""
    problems = [] if apart["values"] else ["no token has the same tokens before it on both"]
    for name, most in TOLERANCE.items():
        if apart[name] > most:
            problems.append(f"{name} distance of log-probabilities: {apart[name]:.3f}, at most {most}")
    return problems


def compare(together: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any]:
    """Prompts whose tokens differ on one GPU and on two, and whether each first difference was a near tie.

    A margin is that of two log-probabilities, so it is held against twice what rounding did to one of 100, in the
    same contexts but where a token differs: there it is part of the distance. The largest would explain anything.
    """
    most, found = 2 * noise(together, other)["p99"], differences(together, other)
    for one in found:
        one["near_tie"] = one["margin"] is not None and one["margin"] <= most
    return {
        "prompts": len(together),
        "equal": len(together) - len(found),
        "largest_margin_of_a_near_tie": most,
        "near_ties": sum(one["near_tie"] for one in found),
        "unexplained": sum(not one["near_tie"] for one in found),
        "differences": found,
    }


def conclude(sides: dict[str, dict[str, Any]], placed: dict[str, Any]) -> dict[str, Any]:
    """The result of all sides, with ``problems``: one line for each thing that does not hold."""
    together, other = (sides[name]["answers"]["together"] for name in ("one", "two"))
    apart = distances(together, other)
    compared = compare(together, other)
    problems = placed["problems"] + beyond(apart)
    if compared["unexplained"]:
        problems.append(f"{compared['unexplained']} prompts are answered otherwise, and no near tie explains it")
    result = {
        "tolerance": TOLERANCE,
        "distances_of_logprobs": apart,
        "distances_between_batch_shapes_on_one_gpu": distances(together, sides["one"]["answers"]["alone"]),
        "greedy": compared,
        "distinct_tokens": len({token for answered in together for token in answered["tokens"]}),
        "planes": placed,
        "ready_seconds": {name: side["ready_seconds"] for name, side in sides.items()},
        "seconds": {name: side["seconds"] for name, side in sides.items()},
    }
    if "control" in sides:
        faulty = distances(together, sides["control"]["answers"]["together"])
        result["distances_of_logprobs_with_planted_fault"] = faulty
        if not beyond(faulty):
            problems.append("the planted fault is within the tolerance")
    return result | {"problems": problems}


def run(side: str, args: argparse.Namespace) -> dict[str, Any]:
    """A side in a process of its own, or what an earlier command left of it."""
    left = WORK / f"{side}.json"
    if not left.exists():
        audit_ranks.remove(audit_of(side))
        # Which node mapped layers lie on may have to be said on a machine whose GPUs do not tell.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("VLLM_MOE_W2") or name.endswith("_MAPPED_NUMA_NODE")
        }
        own = {
            "VLLM_MOE_W2_MAPPED_LAYERS": ",".join(map(str, range(args.layers - args.mapped, args.layers))),
            "VLLM_MOE_W2_MAPPED_AUDIT_PATH": str(audit_of(side)),
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        }
        if args.tiny:  # on a CPU: a core for each rank, which vLLM does not choose within one NUMA node
            own |= TINY_ENVIRONMENT
            own["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, sorted(os.sched_getaffinity(0))[: SIDES[side]]))
        command = [sys.executable, __file__, *_passed(args), "--child", side]
        subprocess.run(command, env=kept | ENVIRONMENT | NCCL_ALONE | own, check=True)
    return json.loads(left.read_text())


def audit_of(side: str) -> Path:
    """Where the first rank of a side leaves its audit."""
    return WORK / f"audit-{side}.json"


def _passed(args: argparse.Namespace) -> list[str]:
    passed = ["--prompts", str(args.prompts), "--tokens", str(args.tokens), "--engine", args.engine]
    return passed + ["--tiny"] * args.tiny


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """What both engines are started with."""
    base = ENGINE | {"load_format": "moet_synthetic", "max_num_seqs": TOGETHER, "disable_custom_all_reduce": True}
    base["compilation_config"] = ENGINE["compilation_config"] | PASSES
    return options(base, args.tiny, json.loads(args.engine))


def main() -> None:
    parser = argparse.ArgumentParser(description="two GPUs against one")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--mapped", type=int, default=2, help="layers at the end that are mapped")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--only", choices=SIDES, help="run one side only, for a later run")
    parser.add_argument("--engine", default="{}", help="engine options to change, as JSON")
    parser.add_argument("--tiny", action="store_true", help="small widths, no graphs")
    parser.add_argument("--control", action="store_true", help="show that a planted fault breaks the tolerance")
    parser.add_argument("--out", type=Path, help="write a result file")
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    engine = engine_options(args)
    if args.child:
        model = WORK / ("faulty" if args.child == "control" else "model")
        found = answer(str(model), SIDES[args.child], args.prompts, args.tokens, engine)
        (WORK / f"{args.child}.json").write_text(json.dumps(found))
        return
    made = full_model.config(args.layers, drafts=0, changed=TINY if args.tiny else REAL)
    full_model.write(WORK / "model", made)
    full_model.write(WORK / "faulty", made | {"routed_scaling_factor": made["routed_scaling_factor"] / 2})
    wanted = [args.only] if args.only else ["one", "two"] + ["control"] * args.control
    sides = {side: run(side, args) for side in wanted}
    if args.only:
        return
    placed = planes(audit_ranks.load(audit_of("one")), audit_ranks.load(audit_of("two")))
    result = {
        "benchmark": "tensor_parallel",
        "weights": f"computed from seed {engine['seed']}",
        "model": "widths of the demo checkpoint" if args.tiny else "real widths; 43 layers in the real model",
        "layers": args.layers,
        "mapped_layers": args.mapped,
        "tokens": args.tokens,
        "engine": engine,
        **conclude(sides, placed),
    }
    print(json.dumps({name: value for name, value in result.items() if name != "engine"}, indent=2))
    if args.out:
        facts.write(args.out, result)
    shutil.rmtree(WORK)
    if result["problems"]:
        raise SystemExit("\n".join(result["problems"]))


if __name__ == "__main__":
    main()
