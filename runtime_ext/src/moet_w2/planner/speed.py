"""Tokens a second: what a decode step reads from where, and how long that takes.

A decode step runs the target over 1 + k tokens of each request and the draft over k (k = 4 draft tokens: DSpark drafts
a block at once, vllm/v1/worker/gpu/spec_decode/dspark/speculator.py). Each layer reads the experts that its tokens
chose, every one once. Which those are the workload decides, as it decides how many draft tokens are accepted: where
nothing was counted, every token draws by itself and evenly, which is the most distinct experts that one can expect.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import ConfigError
from . import kv_cache, weights
from .costs import MEASURED, TOKENS_PER_STEP, Costs
from .machine import Machine
from .model import Model
from .settings import Settings


@dataclass(frozen=True)
class Load:
    """What is asked of the server.

    Attributes:
        requests: concurrent requests.
        context: tokens that each has behind it.
        tokens_per_step: tokens that a step gives each request, its own one and accepted draft tokens.
        correction_hits: share of routings to corrected layers that find FP4; None: that of slots among experts.
        link_bytes: bytes that a step reads over the link, as counted; None: those of experts drawn at random. That is
            right for target layers and too much for a draft's, of which all rows but the first of a request are one
            mask token (vllm/v1/worker/gpu/spec_decode/dflash/speculator.py). On an H200 with made-up weights a draft
            layer read some 12 and 25 experts for one and four requests, where independent draws give 23 and 81 (NVML's
            samples, bench/results/planner_h200.json; the times of the steps say the same). What trained weights choose
            was not measured, so no default counts on it: without this field mapped draft layers cost too much rather
            than too little. Draft layers in device memory are over-estimated alike, by some 0.6 and 2.3% of a step
            there, and no counter tells.
    """

    requests: int = 1
    context: int = 2048
    tokens_per_step: float | None = None
    correction_hits: float | None = None
    link_bytes: float | None = None


ONE = Load()


@dataclass(frozen=True)
class Decode:
    """A step and the rate that follows.

    Attributes:
        seconds: of a step, by cause.
        tokens_per_step: of one request.
        requests: concurrent requests.
        link_bytes: bytes that a step reads over the link.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tokens_per_step: float = 1.0
    requests: int = 1
    link_bytes: float = 0.0

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_s(self) -> float:
        """Of all requests together."""
        return self.requests * self.tokens_per_step / self.step_seconds


def distinct(experts: int, top_k: int, tokens: float) -> float:
    """Expected number of different experts that ``tokens`` tokens choose, each ``top_k`` at random."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def decode(
    model: Model,
    machine: Machine,
    settings: Settings,
    mapped: tuple[int, ...],
    load: Load = ONE,
    costs: Costs = MEASURED,
) -> Decode:
    """Predict one decode step.

    Args:
        model: its dimensions.
        machine: the card, its host and the link.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        load: what is asked of it.
        costs: measured figures.
    """
    drafts = model.draft_layers if settings.speculative else 0
    uncorrected = settings.uncorrected(model)
    hits = hit_rate(model, settings, load)
    device, link, drawn = 0.0, 0.0, 0.0
    for key in range(model.target_layers + drafts):
        tokens = load.requests * (settings.speculative if model.is_draft(key) else settings.query)
        found = 0.0 if key in uncorrected else hits
        reads = costs.reads(tokens, machine.hbm_gbs)
        if key not in mapped:
            device += costs.fixed() + reads * (1 - found + found * costs.fp4_over_base)
            continue
        # Codes of corrected experts come from device memory, wherever the layer is.
        drawn += mapped_bytes(model, tokens, found)
        link += costs.fixed() + reads * found * costs.fp4_over_base
    link_bytes = drawn if load.link_bytes is None else load.link_bytes
    if mapped:
        link += link_bytes / (link_rate(machine) * costs.link_share * 1e9)
    dense = dense_bytes(model, settings) / (machine.hbm_gbs * costs.dense_share * 1e9)
    keys = load.requests * key_bytes(model, load.context) / (machine.hbm_gbs * costs.dense_share * 1e9)
    fixed = (costs.step_us + costs.layer_us * (model.target_layers + drafts)) * 1e-6
    seconds = {
        "experts in device memory": device,
        "experts over the link": link,
        "dense weights": dense,
        "keys": keys,
        "fixed": fixed,
    }
    per_step = load.tokens_per_step
    if per_step is None:
        per_step = min(TOKENS_PER_STEP, settings.query) if drafts else 1.0
    return Decode(seconds, per_step, load.requests, link_bytes)


def mapped_bytes(model: Model, tokens: float, hits: float = 0.0) -> float:
    """Bytes that a mapped layer's experts take over the link in one call: of a corrected one only the scales.

    Args:
        model: its dimensions.
        tokens: tokens of the call.
        hits: share of routings that find FP4 codes in device memory.
    """
    whole, scales = model.geometry.expert_bytes, model.geometry.scale_row_bytes
    return distinct(model.geometry.experts, model.top_k, tokens) * (whole - hits * (whole - scales))


def hit_rate(model: Model, settings: Settings, load: Load) -> float:
    """Share of routings that find FP4: as given, else slots over experts, which is what uniform routing gives."""
    slots = settings.slots(model)
    if load.correction_hits is not None and slots:
        return load.correction_hits
    eligible = model.geometry.experts * (model.layers - len(settings.uncorrected(model)))
    return slots / eligible if eligible else 0.0


def dense_bytes(model: Model, settings: Settings) -> int:
    """Dense weights that a step reads: all but the embedding and the hash tables; the draft reads the head again."""
    dense = weights.dense(model)
    read = sum(dense.values()) - dense[weights.EMBEDDING] - dense[weights.DRAFT]
    read -= model.hash_layers * 4 * model.vocab * model.top_k
    if settings.speculative and model.draft_layers:
        matrix = 2 * model.vocab * model.markov_rank
        # markov_w1 is an embedding; markov_w2 is read for each draft token.
        read += dense[weights.DRAFT] - 2 * matrix + settings.speculative * matrix + dense[weights.HEAD]
    return read


def key_bytes(model: Model, context: int) -> int:
    """Bytes of keys that one request's step reads, each once: windows, the indexer's keys, and what it selects."""
    total = model.layers * min(context, model.window) * kv_cache.KEY_BYTES
    for ratio in model.compress_ratios:
        if ratio:
            stored = context // ratio
            selected = min(stored, model.index_topk) if ratio == 4 else stored
            total += selected * kv_cache.KEY_BYTES + (stored * (model.index_dim + 4) if ratio == 4 else 0)
    return total


def link_rate(machine: Machine) -> float:
    """GB/s of the link.

    Raises:
        ConfigError: there is none, so no mapped layer can be read.
    """
    if machine.link_gbs is None:
        raise ConfigError("layers are mapped, but there is no link to read them over; map none, or give --pcie-gbs")
    return machine.link_gbs
