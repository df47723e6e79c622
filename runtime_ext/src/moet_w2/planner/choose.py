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
from .model import Model
from .placements import DEFAULT, FITS, Assumptions, Placement, counts, last, place
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
