"""Constants from one measured server, in place of those that were assumed or taken from elsewhere.

A server tells two things that the model cannot compute: how much memory context, graphs and the peak of a step took,
and how long a step takes beyond its reads. Both are solved for from one configuration; what they predict of another
one, with other mapped layers, is then a test of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import ConfigError
from . import memory, speed
from .machine import Machine
from .model import Model
from .placements import DEFAULT, Assumptions
from .settings import Settings
from .speed import Load


@dataclass(frozen=True)
class Measured:
    """What one server was seen to do.

    Attributes:
        kv_bytes: "Available KV cache memory" of vLLM's log, in bytes.
        tokens_per_s: decode rate of one request.
        tokens_per_step: 1 + accepted tokens a draft; 1 without speculation.
        context: tokens that the request had behind it, on average.
        link_bytes: bytes that a step of this request read over the link; None: not counted.
    """

    kv_bytes: int
    tokens_per_s: float
    tokens_per_step: float = 1.0
    context: int = 1024
    link_bytes: float | None = None


def calibrated(
    model: Model,
    machine: Machine,
    settings: Settings,
    mapped: tuple[int, ...],
    measured: Measured,
    given: Assumptions = DEFAULT,
) -> Assumptions:
    """The assumptions with which this configuration is predicted exactly.

    Args:
        model: its dimensions.
        machine: the card as it was measured.
        settings: how it was served.
        mapped: keys of the layers in host memory.
        measured: what was seen.
        given: everything else.

    Raises:
        ConfigError: the figures cannot be: the KV cache is larger than what the model leaves, or a step is shorter than
            its reads.
    """
    bare = memory.account(model, machine, settings, mapped, 0, given.others)
    runtime = bare.kv_bytes - measured.kv_bytes
    if runtime < 0:
        raise ConfigError(
            f"a KV cache of {measured.kv_bytes:,} bytes is larger than the {bare.kv_bytes:,} that the model leaves; "
            "check the card's total memory, utilization and correction pool"
        )
    if not measured.tokens_per_s > 0 or not measured.tokens_per_step >= 1:
        raise ConfigError(
            f"{measured.tokens_per_s} tokens/s and {measured.tokens_per_step} tokens a step are no decode; "
            "a rate is positive and a step gives at least one token"
        )
    free = replace(given.costs, layer_us=0.0, step_us=0.0)
    load = Load(1, measured.context, measured.tokens_per_step, given.correction_hits, measured.link_bytes)
    reads = speed.decode(model, machine, settings, mapped, load, free).step_seconds
    fixed = (measured.tokens_per_step / measured.tokens_per_s - reads) * 1e6
    if fixed < 0:
        raise ConfigError(
            f"a step of {measured.tokens_per_step / measured.tokens_per_s * 1e3:.2f} ms is shorter than the "
            f"{reads * 1e3:.2f} ms that its reads take by the model; check the read rates"
        )
    layers = model.layers if settings.speculative else model.target_layers
    step = min(given.costs.step_us, fixed)
    costs = replace(given.costs, step_us=step, layer_us=(fixed - step) / layers)
    return replace(given, runtime_bytes=runtime, costs=costs, tokens_per_step=measured.tokens_per_step)
