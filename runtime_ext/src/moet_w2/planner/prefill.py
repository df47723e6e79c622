"""Seconds of an uncached prompt, roughly.

A chunk of max-num-batched-tokens reads nearly all experts of each target layer, so a mapped layer costs its whole bytes
over the link. For the prompt DSpark only projects the target's hidden states (precompute_and_store_context_kv); its
experts see the tokens that are drafted after each chunk, so mapping its layers hardly slows prefill.
"""

from __future__ import annotations

from . import weights
from .costs import MEASURED, PREFILL_ATTENTION_HBM_GBS, PREFILL_ATTENTION_NS, PREFILL_TFLOPS, Costs
from .machine import Machine
from .model import Model
from .settings import Settings
from .speed import link_rate, mapped_bytes


def seconds(
    model: Model, machine: Machine, settings: Settings, mapped: tuple[int, ...], tokens: int, costs: Costs = MEASURED
) -> float:
    """Seconds of an uncached prompt, roughly: chunks of max-num-batched-tokens, mapped target layers read once each.

    Args:
        model: its dimensions.
        machine: the card, its host and the link.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        tokens: tokens of the prompt.
        costs: measured figures.
    """
    chunk = min(settings.batched, tokens)
    experts = 0.0
    for key in range(model.layers if settings.speculative else model.target_layers):
        rows = settings.speculative if model.is_draft(key) else chunk
        reads = costs.reads(rows, machine.hbm_gbs)
        if key in mapped:
            # The kernels read while they compute; the slower of the two is what counts.
            reads = max(reads, mapped_bytes(model, rows) / (link_rate(machine) * costs.link_share * 1e9))
        experts += costs.fixed() + reads
    dense = weights.dense(model)
    flops = 2 * chunk * sum(dense[purpose] for purpose in (weights.ATTENTION, weights.INDEXER, weights.SHARED))
    dense_seconds = flops / (PREFILL_TFLOPS * 1e12 * machine.hbm_gbs / costs.hbm_gbs)
    pair = PREFILL_ATTENTION_NS * 1e-9 * PREFILL_ATTENTION_HBM_GBS / machine.hbm_gbs
    launches = costs.prefill_launch_us * 1e-6 * model.target_layers
    return chunks(tokens / chunk, experts + dense_seconds, 2 * pair * chunk**2, launches)


def chunks(count: float, first: float, growth: float, least: float) -> float:
    """Seconds of chunks that take ``first`` and ``growth`` more for each one before them, but ``least`` at least."""
    short = min(max((least - first) / growth, 0.0), count)
    return short * least + (count - short) * first + growth * (count**2 - short**2) / 2
