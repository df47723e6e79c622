"""Seconds of an uncached prompt, roughly.

A chunk of prompt reads nearly all experts of each target layer, so a mapped layer costs its whole bytes over the link.
For the prompt DSpark only projects the target's hidden states (precompute_and_store_context_kv); its experts see the
tokens that are drafted after each chunk, so mapping its layers hardly slows prefill.
"""

from __future__ import annotations

from . import weights
from .costs import MEASURED, Costs, attention_pair
from .machine import Machine
from .model import Model
from .settings import Settings
from .speed import link_rate, mapped_bytes


def seconds(
    model: Model, machine: Machine, settings: Settings, mapped: tuple[int, ...], tokens: int, costs: Costs = MEASURED
) -> float:
    """Seconds until the first token of an uncached prompt: chunks as the scheduler makes them, one after the other.

    What the client and the server do beside the steps is left out.

    Args:
        model: its dimensions.
        machine: the card, its host and the link.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        tokens: tokens of the prompt.
        costs: measured figures.
    """
    chunk = settings.chunk
    count, rest = divmod(tokens, chunk)
    pair = attention_pair(machine.hbm_gbs, machine.sm)
    launches = costs.prefill_launch_us * 1e-6 * model.target_layers
    # The token pairs of a chunk are those with each token before it, and half of its own square; twice, as the
    # constant is for all pairs of a prompt, of which causal attention has half.
    found = chunks(
        count, beside_attention(model, machine, settings, mapped, chunk, costs), 2 * pair * chunk**2, launches
    )
    if rest:
        last = beside_attention(model, machine, settings, mapped, rest, costs)
        last += 2 * pair * rest * (tokens - rest / 2)
        found += max(last, 0.0 if rest <= settings.graph_tokens else launches)
    return found


def beside_attention(
    model: Model, machine: Machine, settings: Settings, mapped: tuple[int, ...], chunk: int, costs: Costs = MEASURED
) -> float:
    """Seconds of one chunk on the card, but for what goes with token pairs.

    Args:
        model: its dimensions.
        machine: the card, its host and the link.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        chunk: tokens of the chunk.
        costs: measured figures.
    """
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
    return experts + flops / (costs.prefill_tflops * 1e12 * machine.hbm_gbs / costs.hbm_gbs)


def chunks(count: float, first: float, growth: float, least: float) -> float:
    """Seconds of chunks that take ``first`` and ``growth`` more for each one before them, but ``least`` at least."""
    short = min(max((least - first) / growth, 0.0), count)
    return short * least + (count - short) * first + growth * (count**2 - short**2) / 2
