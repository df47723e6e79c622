"""Where the numbers of the documents are from: words of a document, made from a result, a recipe, the pins or code.

One row a statement. A document that does not hold the words that its row makes is a fault, so after a new measurement
`make docs-check` says what the sentence must be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import docs_held
import docs_memory
import docs_serving
import docs_words
from docs_facts import content

BUILD, HOW, README, VALIDATION, PROVENANCE, METRICS = (
    "BUILD-AND-RUN.md",
    "HOW-IT-WORKS.md",
    "README.md",
    "VALIDATION.md",
    "PROVENANCE.md",
    "docs/metrics.md",
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


QUOTES: tuple[Quote, ...] = (
    # What a machine needs, and what a start must say.
    Quote(BUILD, "profiles", docs_words.audit_rows),
    Quote(BUILD, "profiles", docs_words.profile_rows),
    Quote(BUILD, "sizes", lambda sizes: docs_words.part_rows(sizes["layer"])),
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
            docs_words.disk(sizes) + " pack, some GB",
            f"{sizes['layers']} layers as the kernels read them | {sizes['planes']:,} bytes",
            f"FP4 codes of {sizes['targets']} target layers | {sizes['store']:,} bytes",
            f"{sizes['layers']} layers are {sizes['planes'] / 2**30:.1f} GiB",
            f"A server of all {sizes['layers']} layers with made-up weights",
        ],
    ),
    Quote(
        BUILD,
        "pins.toml",
        lambda pins: [
            f"Python {pins['python']['cuda']} to build",
            f"A driver that runs CUDA {pins['cuda']['compiler'].rpartition('.')[0]} or later",
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
        lambda result: (
            f"{docs_words.number(result['layers'])} mapped layers took "
            f"{sum(result['huge_pages'][name] for name in ('touch_seconds', 'lock_seconds', 'register_seconds')):.2f} s"
        ),
    ),
    Quote(
        BUILD,
        "decode_rate_h200.json",
        lambda result: (
            f"A model of {result['layers']} such layers was ready "
            f"{result['sides']['ours-0-mapped']['ready_seconds']:.0f} s after vLLM was called"
        ),
    ),
    Quote(BUILD, "servers", docs_serving.starts),
    # How it is built.
    Quote(HOW, "constants", lambda facts: f"in which a warp reads them, {facts['lane']} bytes a lane"),
    Quote(HOW, "constants", lambda facts: f"shares a byte among up to {facts['shared']} tokens"),
    Quote(HOW, "constants", lambda facts: f"what torch will take again, and {facts['reserve']} GiB)"),
    Quote(HOW, "sizes", lambda sizes: f"({sizes['layer'].correction_row_bytes >> 20} MiB at the real geometry;"),
    Quote(HOW, "sizes", lambda sizes: f"offset 0 {sizes['layer'].nbytes:,}"),
    Quote(METRICS, "constants", lambda facts: f"an expert of more than {facts['shared']} tokens"),
    # How fast and how exact.
    Quote(HOW, "kernels_correctness_h200.json", lambda result: f"{result['cases']} random cases against float64"),
    Quote(HOW, "kernels_activations.json", docs_words.activation_errors),
    Quote(HOW, "kernels_h200.json", docs_words.kernel_rows),
    Quote(HOW, "kernels_h200.json", docs_words.kernel_targets),
    Quote(HOW, "kernels_counters_h200.json", docs_words.kernel_counters),
    Quote(HOW, "decode_rate_h200.json", docs_words.whole_steps),
    Quote(HOW, "decode_rate_peers_h200.json", docs_serving.second_run),
    Quote(HOW, "startup_h200.json", docs_words.read_layers),
    Quote(HOW, "reads_cpu.json", docs_words.other_readers),
    # What has been shown, and where.
    Quote(
        VALIDATION,
        "kernels_correctness_h200.json",
        lambda result: (
            f"{result['cases']} random cases of the kernels against float64, each twice and bit for bit the "
            f"same: {result['failed'] or 'none'} failed"
        ),
    ),
    Quote(VALIDATION, "kernels_mapped_h200.json", docs_words.mapped_kernels),
    Quote(VALIDATION, "bench/results/kernels_sanitize_h200.txt", docs_words.sanitized),
    Quote(VALIDATION, "host_memory_h200.json", docs_words.locked_results),
    Quote(
        VALIDATION,
        "startup_h200.json",
        lambda result: (
            f"{result['layers']} layers through the cache, {result['mapped_layers']} of them mapped, "
            f"{'all bytes right' if result['bytes_right'] else 'bytes wrong'}"
        ),
    ),
    Quote(
        VALIDATION,
        "correction_h200.json",
        lambda result: (
            f"{result['pool']['slots']} slots at the real geometry: filled beside steps, "
            f"""{result["rows_that_are_not_the_pack's"] or "no"} row that was not the pack's"""
        ),
    ),
    Quote(VALIDATION, "decode_rate_h200.json", docs_words.steps_beside_stock),
    Quote(VALIDATION, "servers", docs_serving.price),
    Quote(VALIDATION, "servers", docs_serving.stops),
    Quote(VALIDATION, "servers", docs_serving.unanswered),
    Quote(VALIDATION, "held", docs_held.said),
    Quote(VALIDATION, "held", docs_held.beside),
    Quote(VALIDATION, "held", docs_held.compiled),
    Quote(VALIDATION, "held", docs_held.kept_up),
    Quote(VALIDATION, "held", docs_held.stops),
    Quote(VALIDATION, "again", docs_held.once_more),
    Quote(VALIDATION, "again", docs_held.launches),
    Quote(VALIDATION, "profiles", docs_memory.room),
    Quote(VALIDATION, "profiles", docs_memory.kv_caches),
    Quote(VALIDATION, "planner_h200.json", docs_memory.rates),
    Quote(VALIDATION, "profiles", docs_serving.held),
    Quote(VALIDATION, "profiles", lambda profiles: f"so that {profiles['512k'].device.vram_gib:g} GiB were left to it"),
    Quote(VALIDATION, "decode_rate_peers_h200.json", docs_serving.peers),
    Quote(VALIDATION, "dspark_equality_h200.json", docs_serving.speculation),
    Quote(VALIDATION, "tensor_parallel_cpu.json", docs_words.two_ranks),
    Quote(VALIDATION, "sizes", lambda sizes: [f"all {sizes['layers']} layers"]),
    Quote(PROVENANCE, "reported", docs_words.reported_rows),
    Quote(PROVENANCE, "packages", docs_words.licences),
    # The front page.
    Quote(README, "kernels_correctness_h200.json", lambda result: f"[{result['cases']} random cases]"),
    Quote(README, "decode_rate_peers_h200.json", lambda result: f"[{result['layers']} layers]"),
    Quote(
        README,
        "dspark_equality_h200.json",
        lambda result: f"[{result['dspark_against_plain']['prompts']} prompts with and without]",
    ),
    Quote(README, "profiles", docs_serving.held),
    Quote(README, "startup_h200.json", lambda result: f"[{result['layers']} layers of real size]"),
    Quote(
        README,
        "sizes",
        lambda sizes: [
            f"all {sizes['layers']} layers at the real geometry",
            docs_words.disk(sizes).replace("for ready", "of ready").replace("for the", "of"),
        ],
    ),
    Quote(
        README,
        "profiles",
        lambda profiles: (
            f"takes up to {profiles['512k'].expect.max_model_len:,} tokens a request, `300k` up to "
            f"{profiles['300k'].expect.max_model_len:,}"
        ),
    ),
    Quote(
        README,
        "demo-cpu.yaml",
        lambda demo: [
            f"{re.search(r'[0-9]+ GiB of memory', demo.hardware)[0]} are enough",
            f"{docs_words.number(len(demo.w2.mapped_layers))} layers of the demo are locked in memory, "
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
