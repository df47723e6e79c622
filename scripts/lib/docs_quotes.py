"""Where the numbers of the documents are from: words of a document, made from a result, a recipe, the pins or code.

One row a statement. A document that does not hold the words that its row makes is a fault, so after a new measurement
`make docs-check` says what the sentence must be.
"""

from __future__ import annotations

import ast
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import metadata
from typing import Any

import venvs
from docs_source import ROOT

from moet_w2 import recipe
from moet_w2.doctor.software import DEEP_GEMM_NVCC
from moet_w2.geometry import LayerGeometry
from moet_w2.planner import reported
from moet_w2.recipe import Recipe

RESULTS = "bench/results"
BUILD, HOW, README, VALIDATION, PROVENANCE = (
    "BUILD-AND-RUN.md",
    "HOW-IT-WORKS.md",
    "README.md",
    "VALIDATION.md",
    "PROVENANCE.md",
)


@dataclass(frozen=True)
class Quote:
    """Words of one document.

    Attributes:
        document: its path.
        source: what the words are made from; a result file by its name.
        make: makes them from the source's content.
    """

    document: str
    source: str
    make: Callable[[Any], Iterable[str] | str]

    def words(self) -> tuple[str, ...]:
        """What the document must hold, spaces as single ones."""
        made = self.make(content(self.source))
        return tuple(" ".join(each.split()) for each in ((made,) if isinstance(made, str) else made))


@cache
def content(source: str) -> Any:
    """What a source holds: JSON of a result, the pins as a dict, a :class:`Recipe`, or a module's facts."""
    if source.endswith(".json"):
        return json.loads((ROOT / (source if "/" in source else f"{RESULTS}/{source}")).read_text(encoding="utf-8"))
    if source.endswith(".txt"):
        return (ROOT / source).read_text(encoding="utf-8")
    if source == "pins.toml":
        return tomllib.loads((ROOT / source).read_text(encoding="utf-8"))
    if source.endswith(".yaml"):
        return recipe.load(ROOT / "bench" / "recipes" / source)
    return CODE[source]()


def _profiles() -> dict[str, Recipe]:
    return {name: content(f"pro6000-{name}.yaml") for name in ("512k", "300k")}


def _sizes() -> dict[str, Any]:
    profile = content("pro6000-512k.yaml")
    layer, correction = profile.model.geometry.layer, profile.w2.correction
    layers = profile.expect.w2_layers
    targets = layers - len(correction.exclude_layers)
    return {
        "layer": layer,
        "layers": layers,
        "targets": targets,
        "planes": layers * layer.nbytes,
        "store": targets * layer.experts * layer.correction_row_bytes,
        "slots": correction.nbytes // layer.correction_row_bytes,
    }


def _constants() -> dict[str, Any]:
    return {
        "nvcc": ".".join(map(str, DEEP_GEMM_NVCC)),
        "disk": {variant: size >> 30 for variant, size in venvs.DISK_BYTES.items()},
        "prefill": constant("correction/tier.py", "PREFILL_TOKENS"),
        "decode": min(constant("kernels/shapes.py", "DECODE_CHUNKS")),
    }


def constant(file: str, name: str) -> Any:
    """A literal of a module of the extension, which is not imported: some of them import torch."""
    tree = ast.parse((ROOT / "runtime_ext/src/moet_w2" / file).read_text(encoding="utf-8"))
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [target.id for target in node.targets] == [name]
    )


CODE: dict[str, Callable[[], Any]] = {
    "profiles": _profiles,
    "sizes": _sizes,
    "constants": _constants,
    "reported": lambda: {profile.name: profile for profile in reported.PROFILES},
    "packages": lambda: None,
}
"""Sources that are code: sizes by geometry and recipes, limits and reported figures by the modules that hold them."""


def _disk(sizes: dict[str, Any]) -> str:
    planes, store = (math.ceil(sizes[name] / 1e9) for name in ("planes", "store"))
    return f"{planes} GB for ready planes, {store} GB for the correction"


def keys(layers: Iterable[int]) -> str:
    return ", ".join(map(str, layers))


def _part_rows(layer: LayerGeometry) -> list[str]:
    return [
        f"| `{part.name}` | {part.experts} x {part.row_bytes:,} | {part.offset:,} | {part.nbytes:,} |"
        for part in layer.parts.values()
    ]


def _audit_rows(profiles: dict[str, Recipe]) -> list[str]:
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


def _profile_rows(profiles: dict[str, Recipe]) -> list[str]:
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


def _kernel_rows(result: dict[str, Any]) -> list[str]:
    """A line for each number of tokens of the base tier."""
    lines, stock = [], result["ratio_to_stock"]
    for entry in (entry for entry in result["tokens"] if entry["tier"] == "base"):
        times, shares = entry["microseconds"], entry["share_of_ceiling"]
        gemms = " | ".join(f"{times[name]:.0f} us | {100 * shares[name]:.0f}%" for name in ("gemm13", "gemm2"))
        ratio = stock[str(entry["tokens"])]["ratio"]
        lines.append(f"| {entry['tokens']} | {gemms} | {times['chain']:.0f} us | {ratio:.2f} |")
    return lines


def _kernel_targets(result: dict[str, Any]) -> list[str]:
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


def _kernel_counters(result: dict[str, Any]) -> list[str]:
    few = next(one for one in result["kernels"] if one["tokens"] == 8 and "13" in one["kernel"])
    many = next(one for one in result["kernels"] if one["tokens"] == 2048 and "13" in one["kernel"])
    return [
        "for GEMM 1 at 8 tokens",
        f"issue in {few['issue_slots_busy_percent']:.0f}% of all cycles",
        f"ALU pipe is {few['alu_percent']:.0f}% busy, memory {few['memory_percent']:.0f}%",
        f"At 2,048 tokens the tensor cores are {many['tensor_percent']:.0f}% busy",
    ]


def _whole_steps(result: dict[str, Any]) -> list[str]:
    ratios = result["ours_over_stock"]["ours-0-mapped"]
    one, four = (ratios[count]["decode_tokens_per_s"] for count in ("1", "4"))
    return [
        f"{result['layers']} layers of the real widths",
        f"{one:.2f} times stock's tokens a second for one request, {four:.2f} for four",
    ]


def _activation_errors(result: dict[str, Any]) -> str:
    """How many times bfloat16's error the scaled e4m3 makes, over both kinds of data and both kinds of scale."""
    ratios = [
        error[name] / error["bf16"]
        for error in result["relative_error"].values()
        for name in ("e4m3_ue8m0_scale", "e4m3_float_scale")
    ]
    return f"e4m3 with a scale for each 32 columns makes {int(min(ratios))} to {math.ceil(max(ratios))} times its error"


def _other_readers(result: dict[str, Any]) -> str:
    ratios = result["ratio_to_threads"]
    ring = [ratio for name, ratio in ratios.items() if name.startswith("io_uring")]
    fifth = {5: "a fifth", 4: "a quarter", 6: "a sixth"}[round(1 / ratios["fastsafetensors"])]
    return f"gave {min(ring):.1g} to {max(ring):.2f} times their rate, by depth, and fastsafetensors {fifth}"


def _locked_results(result: dict[str, Any]) -> str:
    graph = result["graph"]
    wrong = "without a wrong one" if not graph["wrong_replays"] else f"with {graph['wrong_replays']} wrong"
    return (
        f"{result['layers']} mapped layers: exact bytes, one node, read right at "
        f"{result['gb_per_s']['mapped_huge_pages']:.1f} GB/s, {graph['replays']:,} replays of a graph {wrong}"
    )


def _mapped_kernels(result: dict[str, Any]) -> str:
    base = (entry for entry in result["tokens"] if entry["tier"] == "base")
    share = {entry["tokens"]: entry["share_of_ceiling"]["chain"] for entry in base}
    return f"{100 * share[1]:.1f}% of the zero-copy ceiling for one token, {100 * share[5]:.1f}% for 5"


def _steps_beside_stock(result: dict[str, Any]) -> list[str]:
    ratios = result["ours_over_stock"]["ours-0-mapped"]
    one, four = (ratios[count]["decode_tokens_per_s"] for count in ("1", "4"))
    return [
        f"{result['layers']} layers of the real widths in vLLM, random weights, held against the reference: {one:.2f} "
        f"times stock's decode rate for one request, {four:.2f} for four",
        f"and vLLM with {result['layers']} layers",
    ]


def _sanitized(text: str) -> str:
    cases = set(re.findall(r"clean, and it found the planted mistake: (\d+) cases", text))
    return f"memcheck, racecheck and initcheck over {'/'.join(cases)} cases; each found the mistake that was planted"


def _half(part: int, result: dict[str, Any]) -> str:
    return "half of them mapped" if 2 * part == result["layers"] else f"{part} of them mapped"


def number(count: int) -> str:
    """A small count as the first word of a sentence."""
    return ("No", "One", "Two", "Three", "Four", "Five")[count]


def _reported_rows(profiles: dict[str, reported.Profile]) -> list[str]:
    small, large = profiles["300k"], profiles["512k"]
    return [
        f"| KV cache, tokens | {small.kv_tokens:,} | {large.kv_tokens:,} |",
        f"| decode, one request of 1,024 tokens, tokens/s | {small.decode[1]:.2f} | {large.decode[1]:.2f} |",
        f"| decode, four such requests together, tokens/s | {small.decode[4]:.2f} | {large.decode[4]:.2f} |",
        f"| longest prompt of this measurement, tokens | {small.prefill[0]:,} | {large.prefill[0]:,} |",
        f"| seconds to its first token, by a client | {small.prefill[1]:.3f} | {large.prefill[1]:.3f} |",
    ]


def _licences(_: None) -> list[str]:
    """What packages declare, where the environment has them: rows begin so."""
    chosen = "vllm torch transformers triton pydantic jsonschema pyyaml nvidia-ml-py pytest hypothesis ruff"
    rows = []
    for name in chosen.split():
        facts = metadata(name)
        rows.append(f"| {name} | {facts.get('License-Expression') or facts.get('License')} |")
    return rows


QUOTES: tuple[Quote, ...] = (
    # What a machine needs, and what a start must say.
    Quote(BUILD, "profiles", _audit_rows),
    Quote(BUILD, "profiles", _profile_rows),
    Quote(BUILD, "sizes", lambda sizes: _part_rows(sizes["layer"])),
    Quote(
        BUILD,
        "profiles",
        lambda profiles: [
            f"of which CUDA reports {profiles['512k'].device.vram_gib:g} GiB",
            f"compute capability {profiles['512k'].device.capability[0]}",
            f"512k asks for {100 * profiles['512k'].engine['gpu-memory-utilization']:.1f}% of it, "
            f"300k for {100 * profiles['300k'].engine['gpu-memory-utilization']:.1f}%",
            f"{profiles['512k'].expect.mapped_bytes:,} bytes (512k) or "
            f"{profiles['300k'].expect.mapped_bytes:,} bytes (300k)",
        ],
    ),
    Quote(
        BUILD,
        "sizes",
        lambda sizes: [
            _disk(sizes) + " pack, some GB",
            f"{sizes['layers']} layers as the kernels read them | {sizes['planes']:,} bytes",
            f"FP4 codes of {sizes['targets']} target layers | {sizes['store']:,} bytes",
            f"{sizes['layers']} layers are {sizes['planes'] / 2**30:.1f} GiB",
            f"No start of all {sizes['layers']} layers on a GPU has come to its end yet",
        ],
    ),
    Quote(
        BUILD,
        "pins.toml",
        lambda pins: [
            f"Python {pins['python']['cuda']} to build",
            f"A driver that runs CUDA {pins['cuda']['compiler'].rpartition('.')[0]}.",
        ],
    ),
    Quote(BUILD, "constants", lambda facts: f"nvcc {facts['nvcc']} or later"),
    Quote(BUILD, "constants", lambda facts: f"asks for {facts['disk']['cuda']} GiB free"),
    Quote(
        BUILD,
        "startup_h200.json",
        lambda result: [
            f"built from checkpoint tensors took {result['construct']['seconds_per_layer']:.1f} s, a ready one read "
            f"from a cold disk {result['construct']['load_seconds_per_layer']:.2f} s, at "
            f"{result['gib_per_s']['load_cold']:.2f} GiB/s",
            f"for {result['layers']} it took {result['eligibility_seconds']:.4f} s",
        ],
    ),
    Quote(
        BUILD,
        "host_memory_h200.json",
        lambda result: f"{number(result['layers'])} mapped layers took "
        f"{sum(result['huge_pages'][name] for name in ('touch_seconds', 'lock_seconds', 'register_seconds')):.2f} s",
    ),
    Quote(
        BUILD,
        "decode_rate_h200.json",
        lambda result: f"A model of {result['layers']} such layers was ready "
        f"{result['sides']['ours-0-mapped']['ready_seconds']:.0f} s after vLLM was called",
    ),
    # How fast and how exact.
    Quote(HOW, "kernels_correctness_h200.json", lambda result: f"{result['cases']} random cases against float64"),
    Quote(HOW, "kernels_activations.json", _activation_errors),
    Quote(HOW, "kernels_h200.json", _kernel_rows),
    Quote(HOW, "kernels_h200.json", _kernel_targets),
    Quote(HOW, "kernels_counters_h200.json", _kernel_counters),
    Quote(HOW, "decode_rate_h200.json", _whole_steps),
    Quote(
        HOW, "startup_h200.json", lambda result: f"{result['layers']} layers, {_half(result['mapped_layers'], result)}"
    ),
    Quote(HOW, "reads_cpu.json", _other_readers),
    # What has been shown, and where.
    Quote(
        VALIDATION,
        "kernels_correctness_h200.json",
        lambda result: f"{result['cases']} random cases of the kernels against float64, each twice and bit for bit the "
        f"same: {result['failed'] or 'none'} failed",
    ),
    Quote(VALIDATION, "kernels_mapped_h200.json", _mapped_kernels),
    Quote(VALIDATION, "bench/results/kernels_sanitize_h200.txt", _sanitized),
    Quote(VALIDATION, "host_memory_h200.json", _locked_results),
    Quote(
        VALIDATION,
        "startup_h200.json",
        lambda result: f"{result['layers']} layers through the cache, {result['mapped_layers']} of them mapped, "
        f"{'all bytes right' if result['bytes_right'] else 'bytes wrong'}",
    ),
    Quote(
        VALIDATION,
        "correction_h200.json",
        lambda result: f"{result['pool']['slots']} slots at the real geometry: filled beside steps, "
        f"""{result["rows_that_are_not_the_pack's"] or 'no'} row that was not the pack's""",
    ),
    Quote(VALIDATION, "decode_rate_h200.json", _steps_beside_stock),
    Quote(VALIDATION, "sizes", lambda sizes: [f"all {sizes['layers']} layers"]),
    Quote(PROVENANCE, "reported", _reported_rows),
    Quote(PROVENANCE, "packages", _licences),
    # The front page.
    Quote(README, "kernels_correctness_h200.json", lambda result: f"[{result['cases']} random cases]"),
    Quote(
        README,
        "decode_rate_h200.json",
        lambda result: [
            f"[{result['layers']} layers of the real widths in vLLM]",
            f"a step of {result['layers']} layers on one H200",
        ],
    ),
    Quote(README, "startup_h200.json", lambda result: f"[{result['layers']} layers of real size]"),
    Quote(
        README,
        "sizes",
        lambda sizes: [
            f"a server of all {sizes['layers']} layers",
            _disk(sizes).replace("for ready", "of ready").replace("for the", "of"),
        ],
    ),
    Quote(
        README,
        "profiles",
        lambda profiles: f"takes up to {profiles['512k'].expect.max_model_len:,} tokens a request, `300k` up to "
        f"{profiles['300k'].expect.max_model_len:,}",
    ),
    Quote(
        README,
        "demo-cpu.yaml",
        lambda demo: [
            f"{re.search(r'[0-9]+ GiB of memory', demo.hardware)[0]} are enough",
            f"{number(len(demo.w2.mapped_layers))} layers of the demo are locked in memory, "
            f"{demo.expect.mapped_bytes / 1e6:.1f} MB",
        ],
    ),
    Quote(
        README,
        "constants",
        lambda facts: [
            f"{facts['disk']['cpu']} GiB of disk must be free",
            f"a call over more than {facts['prefill']} tokens",
            f"calls of up to {facts['decode']} tokens take the block-scaled",
        ],
    ),
    Quote(README, "pins.toml", lambda pins: f"Python {pins['python']['cpu']}"),
)
"""Every statement."""
