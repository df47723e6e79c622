"""What is held out: decided by a digest of the problem itself, so it cannot drift with seeds or order."""

from __future__ import annotations

import hashlib
import json
from typing import Any

SHARE = 10
ALWAYS_HELD_OUT = {(9, 37)}


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def pair_held_out(a: int, b: int) -> bool:
    """Whether an operand pair, in either order and for either operation, is never trained on (about one in ten)."""
    low, high = min(a, b), max(a, b)
    return (low, high) in ALWAYS_HELD_OUT or _digest(f"pair {low} {high}") % SHARE == 0


def call_held_out(family: str, values: list[Any]) -> bool:
    """Whether a tool call with these argument values is never trained on (about one in ten)."""
    return _digest(f"call {family} {json.dumps(values)}") % SHARE == 0
