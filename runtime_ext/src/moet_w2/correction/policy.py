"""Which experts should hold a slot. Pure functions: the same inputs give the same moves.

An expert's heat is a number for each (layer, expert); what the policies differ in is what heat means:

    freq   routings, each window's count halved every ``half_life`` seconds of wall clock
    lru    1 in the window of the last routing, halved every ``half_life`` seconds since: who was routed later is
           hotter, whatever the clock shows

Promotion goes to the hottest expert without a slot, eviction takes the coldest with one, and a swap happens
only where the newcomer is hotter by the hysteresis, so that two equals do not trade places for ever. For lru a
quarter means that who holds a slot was last routed a third of the half-life before the newcomer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

POLICIES = ("freq", "lru")
HALF_LIFE = 60.0
"""Seconds after which a routing counts half."""

Heat = NDArray[numpy.float64]
"""float64 ``[layers, experts]``."""
Flags = NDArray[numpy.bool_]
"""bool, ``[layers, experts]`` or ``[layers]``."""


@dataclass(frozen=True)
class Rules:
    """What bounds a pass.

    Attributes:
        capacity: slots in the pool.
        most_moves: promotions at most, a swap counting as one.
        hysteresis: by what share a newcomer must be hotter than the expert it replaces; 0.25 is a quarter.
    """

    capacity: int
    most_moves: int
    hysteresis: float = 0.25


@dataclass(frozen=True)
class Moves:
    """What a pass decides: (layer, expert) to evict and to promote, hottest first.

    Evictions come in pairs with the promotions that need their slots; promotions beyond them take free slots.
    """

    promote: tuple[tuple[int, int], ...]
    evict: tuple[tuple[int, int], ...]


def decayed(heat: Heat, seconds: float, half_life: float) -> Heat:
    """Heat after ``seconds`` of wall clock without a routing. Two windows decayed one after the other equal one."""
    return heat * 0.5 ** (seconds / half_life)


def warmed(heat: Heat, counts: NDArray[numpy.int64], policy: str, seconds: float, half_life: float) -> Heat:
    """Heat after a window of routings.

    Args:
        heat: before.
        counts: int64 ``[layers, experts]``, routings in the window; every routing counts, not only its presence.
        policy: one of :data:`POLICIES`.
        seconds: wall clock since the last window.
        half_life: seconds after which an old routing counts half.
    """
    old = decayed(heat, seconds, half_life)
    return old + counts if policy == "freq" else numpy.where(counts > 0, 1.0, old)


def decide(heat: Heat, resident: Flags, eligible: Flags, rules: Rules) -> Moves:
    """Choose promotions and evictions.

    Args:
        heat: float64 ``[layers, experts]``; an expert at 0 is never promoted.
        resident: bool ``[layers, experts]``, experts that hold a slot now.
        eligible: bool ``[layers]``; experts of other layers are neither promoted nor, being never resident, evicted.
        rules: bounds.

    Returns:
        the moves; ties go to the lower layer, then to the lower expert.
    """
    experts = heat.shape[1]
    flat, held = heat.ravel(), resident.ravel()
    allowed = numpy.repeat(eligible, experts) & ~held & (flat > 0)
    newcomers = _hottest(flat, numpy.flatnonzero(allowed))
    coldest = _hottest(-flat, numpy.flatnonzero(held))
    free = max(0, rules.capacity - len(coldest))
    promote, evict = list(newcomers[: min(free, rules.most_moves)]), []
    rest = newcomers[len(promote) : rules.most_moves]
    for newcomer, leaver in zip(rest, coldest, strict=False):
        if flat[newcomer] <= flat[leaver] * (1 + rules.hysteresis):
            break
        promote.append(newcomer)
        evict.append(leaver)
    return Moves(_pairs(promote, experts), _pairs(evict, experts))


def _hottest(heat: NDArray[numpy.float64], candidates: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Candidates sorted from hot to cold; a stable sort keeps the lower index first among equals."""
    return candidates[numpy.argsort(-heat[candidates], kind="stable")]


def _pairs(flat: list[int], experts: int) -> tuple[tuple[int, int], ...]:
    return tuple((int(index) // experts, int(index) % experts) for index in flat)
