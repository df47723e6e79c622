"""Words of the documents that take more than a line to make: rows of tables, sentences with a verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib.metadata import metadata
from typing import Any

from docs_facts import content

from moet_w2.geometry import LayerGeometry
from moet_w2.planner import reported
from moet_w2.recipe import Recipe


def disk(sizes: dict[str, Any]) -> str:
    planes, store = (math.ceil(sizes[name] / 1e9) for name in ("planes", "store"))
    return f"{planes} GB for ready planes, {store} GB for the correction"


def keys(layers: Iterable[int]) -> str:
    return ", ".join(map(str, layers))


def part_rows(layer: LayerGeometry) -> list[str]:
    return [
        f"| `{part.name}` | {part.experts} x {part.row_bytes:,} | {part.offset:,} | {part.nbytes:,} |"
        for part in layer.parts.values()
    ]


def audit_rows(profiles: dict[str, Recipe]) -> list[str]:
    two, three = profiles["512k"], profiles["300k"]
    sizes = content("sizes")
    layer, pool = sizes["layer"], sizes["slots"] * sizes["layer"].correction_row_bytes
    mapped = "`configured_mapped_layers`, `allocated_mapped_layers`"
    return [
        f"| {mapped} | {keys(two.w2.mapped_layers)} | {keys(three.w2.mapped_layers)} |",
        f"| `mapped_bytes` | {two.expect.mapped_bytes:,} | {three.expect.mapped_bytes:,} |",
        f"| `layers` | {sizes['layers']} of {layer.nbytes:,} bytes each | the same |",
        f"| `w2_bytes` | {sizes['planes']:,} | the same |",
        f"| `correction` | {sizes['slots']} slots of {layer.correction_row_bytes:,} bytes, {pool:,} bytes | the same |",
        f"| `uncorrected_layers` | {keys(two.w2.exclude_layers)} | the same |",
    ]


def profile_rows(profiles: dict[str, Recipe]) -> list[str]:
    two, three = profiles["512k"], profiles["300k"]
    engine, draft = two.engine, two.engine["speculative-config"]
    share = "gpu-memory-utilization"
    sizes = content("sizes")
    return [
        f"| mapped layers | {keys(two.w2.mapped_layers)} | {keys(three.w2.mapped_layers)} |",
        f"| longest request | {two.expect.max_model_len:,} tokens | {three.expect.max_model_len:,} tokens |",
        f"| share of GPU memory | {engine[share]} | {three.engine[share]} |",
        f"| draft | DSpark, {draft['num_speculative_tokens']} tokens, {draft['draft_sample_method']} | the same |",
        f"| requests at once, tokens a step | {engine['max-num-seqs']}, {engine['max-num-batched-tokens']:,} |",
        f"| KV cache | {engine['kv-cache-dtype']}, blocks of {engine['block-size']}, prefix caching | the same |",
        f"| FP4 correction | {two.w2.correction.gb} GiB: {sizes['slots']} slots "
        f"for layers 0 to {sizes['targets'] - 1} |",
    ]


def kernel_rows(result: dict[str, Any]) -> list[str]:
    """A line for each number of tokens of the base tier."""
    lines, stock = [], result["ratio_to_stock"]
    for entry in (entry for entry in result["tokens"] if entry["tier"] == "base"):
        times, shares = entry["microseconds"], entry["share_of_ceiling"]
        gemms = " | ".join(f"{times[name]:.0f} us | {100 * shares[name]:.0f}%" for name in ("gemm13", "gemm2"))
        ratio = stock[str(entry["tokens"])]["ratio"]
        lines.append(f"| {entry['tokens']} | {gemms} | {times['chain']:.0f} us | {ratio:.2f} |")
    return lines


def kernel_targets(result: dict[str, Any]) -> list[str]:
    """The goals, and that they are met or missed as the words around them say."""
    targets = result["targets"]
    share = targets["share_of_ceiling_of_each_gemm_to_8_tokens"]
    few, many = targets["times_stock_to_8_tokens"], targets["times_stock_at_2048_tokens"]
    met = "met" if few["met"] and many["met"] else "missed"
    return [
        f"The goal of {100 * share['at_least']:.0f}% of the read rate at up to 8 tokens is "
        f"{'met' if share['met'] else 'missed'} on that card",
        f"{few['at_least']:g} times stock at up to 8 tokens and no less than stock at 2,048 are {met}",
    ]


def kernel_counters(result: dict[str, Any]) -> list[str]:
    few = next(one for one in result["kernels"] if one["tokens"] == 8 and "13" in one["kernel"])
    many = next(one for one in result["kernels"] if one["tokens"] == 2048 and "13" in one["kernel"])
    return [
        "for GEMM 1 at 8 tokens",
        f"issue in {few['issue_slots_busy_percent']:.0f}% of all cycles",
        f"ALU pipe is {few['alu_percent']:.0f}% busy, memory {few['memory_percent']:.0f}%",
        f"At 2,048 tokens the tensor cores are {many['tensor_percent']:.0f}% busy",
    ]


def whole_steps(result: dict[str, Any]) -> list[str]:
    ratios = result["ours_over_stock"]["ours-0-mapped"]
    one, four = (ratios[count]["decode_tokens_per_s"] for count in ("1", "4"))
    return [
        f"{result['layers']} layers of the real widths",
        f"{one:.2f} times stock's tokens a second for one request, {four:.2f} for four",
    ]


def activation_errors(result: dict[str, Any]) -> str:
    """How many times bfloat16's error the scaled e4m3 makes, over both kinds of data and both kinds of scale."""
    ratios = [
        error[name] / error["bf16"]
        for error in result["relative_error"].values()
        for name in ("e4m3_ue8m0_scale", "e4m3_float_scale")
    ]
    return f"e4m3 with a scale for each 32 columns makes {int(min(ratios))} to {math.ceil(max(ratios))} times its error"


def other_readers(result: dict[str, Any]) -> str:
    ratios = result["ratio_to_threads"]
    ring = [ratio for name, ratio in ratios.items() if name.startswith("io_uring")]
    fifth = {5: "a fifth", 4: "a quarter", 6: "a sixth"}[round(1 / ratios["fastsafetensors"])]
    return f"gave {min(ring):.1g} to {max(ring):.2f} times their rate, by depth, and fastsafetensors {fifth}"


def locked_results(result: dict[str, Any]) -> str:
    graph = result["graph"]
    wrong = "without a wrong one" if not graph["wrong_replays"] else f"with {graph['wrong_replays']} wrong"
    return (
        f"{result['layers']} mapped layers: exact bytes, one node, read right at "
        f"{result['gb_per_s']['mapped_huge_pages']:.1f} GB/s, {graph['replays']:,} replays of a graph {wrong}"
    )


def mapped_kernels(result: dict[str, Any]) -> str:
    base = (entry for entry in result["tokens"] if entry["tier"] == "base")
    share = {entry["tokens"]: entry["share_of_ceiling"]["chain"] for entry in base}
    return f"{100 * share[1]:.1f}% of the zero-copy ceiling for one token, {100 * share[5]:.1f}% for 5"


def steps_beside_stock(result: dict[str, Any]) -> list[str]:
    ratios = result["ours_over_stock"]["ours-0-mapped"]
    one, four = (ratios[count]["decode_tokens_per_s"] for count in ("1", "4"))
    return [
        f"{result['layers']} layers of the real widths in vLLM, random weights, held against the reference: {one:.2f} "
        f"times stock's decode rate for one request, {four:.2f} for four",
        f"vLLM with {result['layers']} layers, and servers",
    ]


def sanitized(text: str) -> str:
    cases = set(re.findall(r"clean, and it found the planted mistake: (\d+) cases", text))
    return f"memcheck, racecheck and initcheck over {'/'.join(cases)} cases; each found the mistake that was planted"


def two_ranks(result: dict[str, Any]) -> list[str]:
    greedy, planes = result["greedy"], result["planes"]
    whole = planes["one_gpu"]["w2_bytes"]
    half = all(2 * rank["w2_bytes"] == whole for rank in planes["ranks"])
    return [
        f"made-up weights in {result['layers']} layers of the demo's widths",
        f"each rank holds {'half' if half else 'not half'} of every layer's bytes, and of {greedy['prompts']} prompts "
        f"decoded greedily {greedy['equal']} give the same tokens, {greedy['near_ties']} differ first at a near tie, "
        f"{greedy['unexplained']} otherwise",
    ]


def read_layers(result: dict[str, Any]) -> str:
    layers, mapped = result["layers"], result["mapped_layers"]
    return f"{layers} layers, {'half' if 2 * mapped == layers else mapped} of them mapped"


def number(count: int) -> str:
    """A small count as the first word of a sentence."""
    return ("No", "One", "Two", "Three", "Four", "Five")[count]


def reported_rows(profiles: dict[str, reported.Profile]) -> list[str]:
    small, large = profiles["300k"], profiles["512k"]
    return [
        f"| KV cache, tokens | {small.kv_tokens:,} | {large.kv_tokens:,} |",
        f"| decode, one request of 1,024 tokens, tokens/s | {small.decode[1]:.2f} | {large.decode[1]:.2f} |",
        f"| decode, four such requests together, tokens/s | {small.decode[4]:.2f} | {large.decode[4]:.2f} |",
        f"| longest prompt of this measurement, tokens | {small.prefill[0]:,} | {large.prefill[0]:,} |",
        f"| seconds to its first token, by a client | {small.prefill[1]:.3f} | {large.prefill[1]:.3f} |",
    ]


def licences(_: None) -> list[str]:
    """What packages declare, where the environment has them: rows begin so."""
    chosen = "vllm torch transformers triton pydantic jsonschema pyyaml nvidia-ml-py pytest hypothesis ruff"
    rows = []
    for name in chosen.split():
        facts = metadata(name)
        rows.append(f"| {name} | {facts.get('License-Expression') or facts.get('License')} |")
    return rows
