"""What the correction tier reports of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Totals:
    """Running totals of a manager.

    Attributes:
        routings: routings of eligible layers that were counted.
        hits: those among them whose expert held a slot when they were counted.
        promotions: rows that were copied to a slot.
        evictions: experts that were told to leave one.
        bytes_read: bytes of the promoted rows.
        read_errors: rows that could not be read or were not what the pack vouches for.
        windows: windows of counts that were worked on.
        failures: passes that ended in an error, after which experts stay as they are.
    """

    routings: int = 0
    hits: int = 0
    promotions: int = 0
    evictions: int = 0
    bytes_read: int = 0
    read_errors: int = 0
    windows: int = 0
    failures: int = 0


@dataclass(frozen=True)
class Metrics:
    """One look at the tier: gauges, and totals since the start.

    Attributes:
        slots: slots in the pool.
        resident: experts that hold one.
        totals: see :class:`Totals`.
    """

    slots: int
    resident: int
    totals: Totals

    @property
    def hit_rate(self) -> float | None:
        """Share of all routings that found their expert in a slot; every routing of every token counts alike. None
        before the first one."""
        return self.totals.hits / self.totals.routings if self.totals.routings else None
