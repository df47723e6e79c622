"""Placements for other cards and contexts, in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .costs import MEASURED_HBM_GBS
from .machine import Machine, card
from .model import Model
from .placements import DEFAULT, Assumptions, Placement, smallest, with_room
from .settings import Settings

CONTEXTS = (65_536, 131_072, 300_000, 524_288)


@dataclass(frozen=True)
class Card:
    """A card by its data sheet; read rates are peaks, and 51 GB/s is what one host's PCIe 5.0 x16 gave.

    Attributes:
        name: what it is sold as.
        machine: the card on a host with 128 GiB.
    """

    name: str
    machine: Machine


CARDS = (
    Card("RTX PRO 6000, 96 GB", card(96, hbm_gbs=1790, sm=12)),
    Card("H100 PCIe, 80 GB", card(80, hbm_gbs=2000, sm=9)),
    Card("RTX PRO 5000, 48 GB", card(48, hbm_gbs=1344, sm=12)),
    Card("RTX 5090, 32 GB", card(32, hbm_gbs=1792, sm=12)),
)
"""Cards that this vLLM has attention kernels of the model for. What is said of them is predicted, not measured."""
KNOWN = (*CARDS, Card("H200, 141 GB", card(141, hbm_gbs=MEASURED_HBM_GBS, sm=9)))
"""Cards whose read rate is known: by data sheets; of the H200, which holds all layers, what a plain read reached."""
_ALIKE = 0.01
"""By how much the memory of cards of one kind may differ, as CUDA reports it."""


def known(machine: Machine) -> Card | None:
    """The card of this memory and compute capability; None where the planner knows none.

    Args:
        machine: as a recipe or options give it.
    """
    alike = (
        each
        for each in KNOWN
        if each.machine.sm == machine.sm
        and abs(machine.cuda_bytes - each.machine.cuda_bytes) <= _ALIKE * each.machine.cuda_bytes
    )
    return next(alike, None)


@dataclass(frozen=True)
class Proposal:
    """What a card gives for a context.

    Attributes:
        card: the card.
        settings: how it is served.
        placement: None where nothing fits.
    """

    card: Card
    settings: Settings
    placement: Placement | None


def propose(
    model: Model,
    settings: Settings,
    cards: Sequence[Card] = CARDS,
    contexts: Sequence[int] = CONTEXTS,
    given: Assumptions = DEFAULT,
    keep: bool = False,
) -> Iterator[Proposal]:
    """The smallest placement of each card, context, and with and without the correction pool.

    Args:
        model: its dimensions.
        settings: how it is served, but for what follows.
        cards, contexts: of the table.
        given: assumptions.
        keep: utilization as it is, also where the longest prompt has no room then.
    """
    pools = (settings.correction_bytes, 0) if settings.correction_bytes else (0,)
    for each in cards:
        for context in contexts:
            for pool in pools:
                wish = replace(settings, context=context, correction_bytes=pool)
                wish = wish if keep else with_room(model, each.machine, wish, given)
                yield Proposal(each, wish, smallest(model, each.machine, wish, given))
