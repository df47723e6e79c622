"""Numbers on the command line of ``moet plan``: each with the range that a plan can be made for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True)
class Refused:
    """What stands for a value that cannot be used, until :func:`check` says so.

    Attributes:
        text: the value as typed.
        allowed: what can be typed.
    """

    text: str
    allowed: str


@dataclass(frozen=True)
class Number:
    """An argparse type: a number in a range. It never raises: argparse would print the whole usage first.

    Attributes:
        low: the least.
        high: the most.
        whole: whether it must be an integer.
        zero: whether 0 is taken too, below ``low``.
    """

    low: float
    high: float
    whole: bool = False
    zero: bool = False

    def __call__(self, text: str) -> float | Refused:
        """The number, or a refusal for text that is none or lies outside the range.

        Args:
            text: the value as typed.
        """
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            return Refused(text, self.allowed)
        # Comparisons with nan are false, so it is refused like any other.
        inside = self.low <= value <= self.high or (self.zero and value == 0)
        return value if inside else Refused(text, self.allowed)

    @property
    def allowed(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low} to {self.high}{', or 0' if self.zero else ''}"


def whole(low: int, high: int) -> Number:
    """An argparse type: an integer in a range.

    Args:
        low: the least.
        high: the most.
    """
    return Number(low, high, whole=True)


def check(args: argparse.Namespace) -> None:
    """Look for values that were refused.

    Args:
        args: parsed options.

    Raises:
        ConfigError: the first one, as typed, with what the option takes.
    """
    for name, value in vars(args).items():
        if isinstance(value, Refused):
            raise ConfigError(f"{option(name)} is {value.text!r}; give {value.allowed}")


def option(name: str) -> str:
    """An option as it is typed.

    Args:
        name: its name among parsed options.
    """
    return "--" + name.replace("_", "-")


GIBS = Number(0.001, 65536)
"""Memory of a card or a host."""
PARTS = Number(0, 65536)
"""A part of a card's memory, which can be nothing."""
RATE = Number(0.1, 100_000)
"""GB/s of memory; today's fastest cards read 8,000."""
LINK = Number(0.1, 100_000, zero=True)
SHARE = Number(0, 1)
UTILIZATION = Number(0.01, 1)
MAJOR = whole(1, 12)
"""Major compute capabilities that exist; 120 or 90 would name another card than was meant."""
TOKENS = whole(1, 1 << 24)
HELD = whole(0, 1 << 24)
SEQS = whole(1, 1 << 16)
DRAFTS = whole(0, 64)
STEP = Number(1, 65)
"""One token and all drafts."""
