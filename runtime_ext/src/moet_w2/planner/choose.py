"""Which layers to map, and why.

Layers are mapped from the last key down: first the draft's, then the target's last ones. A draft layer costs less than
a target layer: it runs over one token of each request less, and hardly over the prompt. Among target layers the model
knows no difference; the last ones are taken so that mapped keys are one range.

The placement chosen maps as few layers as leave room for one request of the full context and, beside it, for the other
requests while they decode (``memory.reserve``), and as the host can lock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import reasons
from .machine import Machine
from .memory import Memory
from .model import Model
from .placements import DEFAULT, FITS, Assumptions, Placement, counts, gib, host_fault, last, place, with_room
from .settings import Settings


@dataclass(frozen=True)
class Plan:
    """All placements of one wish, fewest mapped layers first.

    Attributes:
        placements: one for each number of mapped layers.
        chosen: the one to take; None where nothing fits.
        reasons: why, or why not and what would help.
    """

    placements: tuple[Placement, ...]
    chosen: Placement | None
    reasons: tuple[str, ...]


def plan(model: Model, machine: Machine, settings: Settings, given: Assumptions = DEFAULT) -> Plan:
    """Choose a placement.

    Args:
        model: its dimensions.
        machine: the card, its host and the link.
        settings: how it is served.
        given: assumptions.
    """
    placements = [place(model, machine, settings, last(model, count), given) for count in counts(model, machine)]
    number = next((n for n, found in enumerate(placements) if found.status == FITS), None)
    if number is None:
        return Plan(tuple(placements), None, tuple(reasons.against(model, machine, settings, placements, given)))
    chosen = placements[number] = replace(placements[number], status="chosen")
    return Plan(tuple(placements), chosen, tuple(reasons.of(model, machine, placements, number, given)))


def instead(
    model: Model, machine: Machine, settings: Settings, found: Memory, given: Assumptions = DEFAULT
) -> tuple[str, ...]:
    """What to change in a given placement that does not fit, or whose longest prompt leaves too little free.

    Args:
        model: its dimensions.
        machine: the card, its host and the link.
        settings: how it is served.
        found: its memory.
        given: assumptions.
    """
    fault = host_fault(found, machine, given)
    if found.fits and found.safe and fault is None:
        return ()
    room = with_room(model, machine, settings, given)
    lower = "" if room == settings else f"lower gpu-memory-utilization to {room.utilization:g}"
    # Utilization takes from the KV cache alone.
    less = int(machine.cuda_bytes * settings.utilization) - int(machine.cuda_bytes * room.utilization)
    if lower and fault is None and found.kv_bytes - less >= found.kv_needed:
        return (lower,)
    better = plan(model, machine, room, given)
    if better.chosen is None:
        needs = f"a longest prompt needs a gpu-memory-utilization of {room.utilization:g}; with that:"
        return (needs, *better.reasons) if lower else better.reasons
    chosen = better.chosen
    remedy = f"map {reasons.keys(chosen.mapped) if chosen.mapped else 'no layer'}"
    remedy += f", {gib(chosen.memory.mapped_bytes)}" + (f", and {lower}" if lower else "")
    lines = [f"{remedy}: one request then decodes {chosen.decode[1].tokens_per_s:.1f} tokens/s"]
    if fault is not None and machine.link_gbs is not None:
        lines.append(f"or give the host {gib(found.mapped_bytes + given.host_reserve)}")
    return tuple(lines)
