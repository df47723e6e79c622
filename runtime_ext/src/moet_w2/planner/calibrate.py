"""Constants from one measured server, in place of those that were assumed or taken from elsewhere.

A server tells things that the model cannot compute: how much memory context, graphs and the peak of a step took, how
long a step takes beyond its reads, and how long its host takes to launch a chunk of prefill. They are solved for from
one configuration; what they predict of another one, with other mapped layers, is then a test of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import ConfigError
from . import memory, prefill, speed
from .costs import Costs
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
        prompt_tokens: of a prompt that was less than a chunk and that no graph covers; 0: none was timed.
        first_token_seconds: until the first token after it.
    """

    kv_bytes: int
    tokens_per_s: float
    tokens_per_step: float = 1.0
    context: int = 1024
    link_bytes: float | None = None
    prompt_tokens: int = 0
    first_token_seconds: float = 0.0


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
    if settings.graph_tokens < measured.prompt_tokens < settings.chunk:
        costs = replace(costs, prefill_launch_us=_launch_us(model, machine, settings, mapped, measured, costs))
    return replace(given, runtime_bytes=runtime, costs=costs, tokens_per_step=measured.tokens_per_step)


def _launch_us(
    model: Model, machine: Machine, settings: Settings, mapped: tuple[int, ...], measured: Measured, costs: Costs
) -> float:
    """Launches of a layer in a chunk of prefill: the first token's time less that of a decode step.

    That is how :data:`costs.PREFILL_LAUNCH_US` was taken: it stands for what client and server do beside the chunk.
    Where the card alone would have taken that long, by the model, the host's share does not show, and what was assumed
    stays.
    """
    took = measured.first_token_seconds - measured.tokens_per_step / measured.tokens_per_s
    card = prefill.seconds(
        model, machine, settings, mapped, measured.prompt_tokens, replace(costs, prefill_launch_us=0.0)
    )
    return took / model.target_layers * 1e6 if took > card else costs.prefill_launch_us
