"""What reads and steps cost: measured figures, and how they are carried to another card.

Every constant here says which measurement it is from. Carrying to another card assumes that a kernel's time is a fixed
part and a part that goes with the bytes, and that the latter reaches the same share of the card's read rate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHAIN_US: tuple[tuple[int, float], ...] = (
    (1, 30.90),
    (2, 48.34),
    (4, 73.92),
    (5, 89.64),
    (8, 128.97),
    (16, 257.23),
    (32, 471.26),
    (64, 641.54),
    (256, 866.10),
    (2048, 2061.32),
)
"""Microseconds of one layer's routed experts (routing, two GEMMs, combine) by tokens, top 6 of 256 at random, on one
H200: bench/results/kernels_h200.json. A test holds this table to that file."""
CHAIN_FIXED_US = 15.0
"""Of them, what does not go with bytes: the intercept of a line through 1 to 8 tokens."""
MEASURED_HBM_GBS = 4258.4
"""GB/s that a plain read kernel reached on that H200, in the same run."""
FP4_OVER_BASE = 1.68
"""Of five tokens' experts that are all corrected, over those of none, beyond the fixed part: 125 / 74 us, that file."""
LINK_SHARE = 0.985
"""Of the rate of a plain read over the link, what the experts' kernels reach: 0.985 and 0.997 for 1 and 5 tokens, 0.982
for 64 (bench/results/kernels_mapped_h200.json)."""
DENSE_SHARE = 0.6
"""Of the card's read rate, what reads of dense weights reach in steps of few tokens. An assumption; not measured."""
LAYER_US = 51.8
STEP_US = 1176.0
"""Fixed cost of a layer and of a step: what measured steps take beyond their reads by this model, with two numbers of
layers, on H200s. Eight layers without speculation, one request: 1.45 ms (bench/results/decode_rate_h200.json) and
1.73 ms (decode_rate_peers_h200.json, another host and day), of which the mean counts; 46 layers with speculation, one
request: 3.56 ms (serving_h200-resident.json). So what speculation itself costs a step, which nothing measured apart, is
shared out among layers and step. Tests hold both to these files."""
PREFILL_LAUNCH_US = 3840.0
"""Time that a host takes to launch a layer's kernels in a chunk of prefill that no graph covers; a faster card waits.
From the same eight layers: the first token after a prompt of 512, less a decode step, comes after 28.0 and 33.4 ms;
their mean. That it goes with layers and not with tokens is an assumption; 46 layers without a mapped one agree on one
host (0.19 s for 512 tokens). All other servers of 46 layers took longer, 0.22 to 0.32 s: serving_h200-*.json in
bench/results and bench/results/held."""
PREFILL_TFLOPS = 400.0
"""Of the dense GEMMs in a chunk of prefill on an H200, in a time that stands for all that goes with tokens but routed
experts: GEMMs, residual streams, norms, sparse attention. Fitted, with the next one, to how the 250,000 tokens of
bench/results/serving_h200-300k.json went on (``progress``); on other cards it goes with the read rate."""
FLASHMLA_PAIR_NS = 0.066
"""Nanoseconds of prefill attention and indexer by the square of the prompt's tokens, with FlashMLA's kernels, on an
H200: the same fit. From 4,090 to 245,400 tokens it is at most 0.2 s off. The client's first token came 3.7 s later than
this says, all of it after the last chunk had been handed over; what ran there is not known, and it is left out."""
FLASHMLA_HBM_GBS = MEASURED_HBM_GBS
FLASHINFER_PAIR_NS = 0.63
"""The same with FlashInfer's kernels, of compute capability 12, on a card that reads 1,790 GB/s: the 80.5 s for 250,000
and 274.7 s for 500,000 tokens that the original system reported, each 6% off. Neither the read rates of the two cards
(2.4 times) nor their peaks (2 times, by data sheets) make one number of both, so each has its own."""
FLASHINFER_HBM_GBS = 1790.0
TOKENS_PER_STEP = 2.65
"""Tokens that a step with four draft tokens gives one request. No acceptance was reported; the original system's four
decode rates imply 2.35 to 3.0 with this model (``reported.py``), and fewer if drafts choose experts alike (see
:attr:`speed.Load.link_bytes`). With random weights 1.8 to 2.0 were measured (serving_h200-*.json)."""


@dataclass(frozen=True)
class Costs:
    """The figures a prediction uses; the defaults are the module's constants.

    Attributes:
        chain_us: (tokens, microseconds) of one layer's routed experts, ascending.
        chain_fixed_us: part of them that does not scale with the read rate.
        hbm_gbs: read rate of the card that they were measured on.
        fp4_over_base: how much longer corrected experts take, beyond the fixed part.
        link_share: share of the link's read rate that the kernels reach.
        dense_share: share of the card's read rate that dense weights are read with.
        layer_us: fixed cost of a layer in a decode step.
        step_us: fixed cost of a decode step.
        prefill_launch_us: launches of a layer's kernels in a chunk of prefill.
        prefill_tflops: of dense GEMMs in a chunk of prefill.
    """

    chain_us: tuple[tuple[int, float], ...] = CHAIN_US
    chain_fixed_us: float = CHAIN_FIXED_US
    hbm_gbs: float = MEASURED_HBM_GBS
    fp4_over_base: float = FP4_OVER_BASE
    link_share: float = LINK_SHARE
    dense_share: float = DENSE_SHARE
    layer_us: float = LAYER_US
    step_us: float = STEP_US
    prefill_launch_us: float = PREFILL_LAUNCH_US
    prefill_tflops: float = PREFILL_TFLOPS

    def fixed(self) -> float:
        """Seconds of one layer's experts that do not go with bytes."""
        return self.chain_fixed_us * 1e-6

    def reads(self, tokens: float, hbm_gbs: float) -> float:
        """Seconds of one layer's experts beyond the fixed ones, from device memory and without correction.

        Args:
            tokens: tokens of the step; between two measured numbers a straight line is drawn.
            hbm_gbs: read rate of the card.
        """
        measured = interpolate(self.chain_us, tokens)
        return (measured - self.chain_fixed_us) * 1e-6 * self.hbm_gbs / hbm_gbs


MEASURED = Costs()


def attention_pair(hbm_gbs: float, sm: int) -> float:
    """Seconds of prefill attention and indexer by the square of the prompt's tokens.

    That a family's time goes with the read rate is an assumption.

    Args:
        hbm_gbs: read rate of the card.
        sm: major compute capability, which says whose kernels attention takes.
    """
    if sm >= 12:
        return FLASHINFER_PAIR_NS * 1e-9 * FLASHINFER_HBM_GBS / hbm_gbs
    return FLASHMLA_PAIR_NS * 1e-9 * FLASHMLA_HBM_GBS / hbm_gbs


def interpolate(points: tuple[tuple[int, float], ...], at: float) -> float:
    """A line through the two points around ``at``; beyond the ends, the line of the last two."""
    place = min(max(bisect_left([x for x, _ in points], at), 1), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    return low + (high - low) * (at - left) / (right - left)


def from_result(document: Mapping[str, Any]) -> Costs:
    """The kernels' costs of a result file of ``bench/kernels.py speed``; the rest as it is by default.

    Args:
        document: the parsed file.
    """
    base = sorted(
        (point["tokens"], point["microseconds"]["chain"]) for point in document["tokens"] if point["tier"] == "base"
    )
    by_tier = {(point["tokens"], point["tier"]): point["microseconds"]["chain"] for point in document["tokens"]}
    return Costs(
        chain_us=tuple(base),
        hbm_gbs=document["read_gb_per_s"]["ceiling"],
        fp4_over_base=(by_tier[5, "fp4"] - CHAIN_FIXED_US) / (by_tier[5, "base"] - CHAIN_FIXED_US),
    )
