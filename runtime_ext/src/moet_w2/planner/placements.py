"""One placement and what follows from it; the smallest that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import ConfigError
from . import memory, prefill, speed
from .costs import Costs
from .machine import GIB, HOST_RESERVE, Machine
from .memory import Memory
from .model import Model
from .settings import Settings
from .speed import Decode, Load

FITS = "fits"


@dataclass(frozen=True)
class Placement:
    """One placement with what follows from it.

    Attributes:
        mapped: keys of the layers in host memory.
        settings: how it is served.
        memory: bytes by purpose.
        decode: predicted decode by number of concurrent requests.
        prefill_seconds: of a prompt of the full context.
        status: ``chosen``, ``fits``, or what is missing.
    """

    mapped: tuple[int, ...]
    settings: Settings
    memory: Memory
    decode: dict[int, Decode]
    prefill_seconds: float
    status: str


@dataclass(frozen=True)
class Assumptions:
    """What a plan takes for granted.

    Attributes:
        costs: measured figures.
        runtime_bytes: what vLLM counts beside all else, in place of what memory.py makes of it; None for that.
        others: tokens of the other requests together, as a share of the context.
        tokens_per_step: None for the default.
        correction_hits: None for the default.
        host_reserve: host memory left alone.
        decode_context: tokens that each request has behind it while it decodes.
    """

    costs: Costs = Costs()
    runtime_bytes: int | None = None
    others: float = memory.OTHERS
    tokens_per_step: float | None = None
    correction_hits: float | None = None
    host_reserve: int = HOST_RESERVE
    decode_context: int = 2048

    def __post_init__(self) -> None:
        for name, low, high in (
            ("others", 0, 1),
            ("tokens_per_step", 1, None),
            ("correction_hits", 0, 1),
            ("runtime_bytes", 0, None),
            ("decode_context", 0, None),
        ):
            value = getattr(self, name)
            # Comparisons with nan are false, so it is refused like any other.
            if value is not None and not (low <= value and (high is None or value <= high)):
                allowed = f"at least {low}" if high is None else f"{low} to {high}"
                raise ConfigError(f"{name} is {value}; {allowed} is what it can be")


DEFAULT = Assumptions()


def with_room(model: Model, machine: Machine, settings: Settings, given: Assumptions = DEFAULT) -> Settings:
    """The settings with utilization as low as the longest prompt needs it, or as they are where that has room.

    Mapped layers have no part in it: what vLLM does not count is the same with any.
    """
    found = memory.account(model, machine, settings, (), given.runtime_bytes, given.others)
    return settings if found.safe else replace(settings, utilization=max(0.001, roomy_utilization(machine, found)))


def roomy_utilization(machine: Machine, found: Memory) -> float:
    """Utilization that leaves :data:`memory.LEAST_SPARE` free in the longest prompt, in thousandths."""
    return int((found.share + found.spare - memory.LEAST_SPARE) / machine.cuda_bytes * 1000) / 1000


def place(
    model: Model, machine: Machine, settings: Settings, mapped: tuple[int, ...], given: Assumptions = DEFAULT
) -> Placement:
    """What follows from mapping these layers.

    Args:
        model: its dimensions.
        machine: the card, its host and the link.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        given: assumptions.
    """
    found = memory.account(model, machine, settings, mapped, given.runtime_bytes, given.others)
    if not found.fits:
        status = f"context does not fit: {gib(found.kv_needed - found.kv_bytes)} too little on the card"
    elif not found.roomy:
        missing = found.kv_needed + found.kv_reserve - found.kv_bytes
        status = f"no room for other requests: {gib(missing)} too little on the card"
    else:
        status = host_fault(found, machine, given) or FITS
    decode = {
        requests: speed.decode(
            model,
            machine,
            settings,
            mapped,
            Load(requests, given.decode_context, given.tokens_per_step, given.correction_hits),
            given.costs,
        )
        for requests in sorted({1, settings.seqs})
    }
    seconds = prefill.seconds(model, machine, settings, mapped, settings.context, given.costs)
    return Placement(mapped, settings, found, decode, seconds, status)


def host_fault(found: Memory, machine: Machine, given: Assumptions = DEFAULT) -> str | None:
    """Why the host cannot hold the mapped layers for the card to read; None where it can, or where none is mapped."""
    if not found.mapped_bytes:
        return None
    if machine.link_gbs is None:
        return "no link to read them over"
    missing = found.mapped_bytes + given.host_reserve - machine.host_bytes
    return f"host memory: {gib(missing)} too little" if missing > 0 else None


def last(model: Model, count: int) -> tuple[int, ...]:
    """The last ``count`` layer keys."""
    return tuple(range(model.layers - count, model.layers))


def smallest(model: Model, machine: Machine, settings: Settings, given: Assumptions = DEFAULT) -> Placement | None:
    """The placement with the fewest mapped layers that fits; None where none does."""
    tried = (place(model, machine, settings, last(model, count), given) for count in counts(model, machine))
    return next((found for found in tried if found.status == FITS), None)


def counts(model: Model, machine: Machine) -> range:
    """Numbers of layers that can be mapped: none without a link."""
    return range(model.layers + 1) if machine.link_gbs is not None else range(1)


def gib(nbytes: float) -> str:
    """Bytes for a person."""
    return f"{nbytes / GIB:,.2f} GiB"
