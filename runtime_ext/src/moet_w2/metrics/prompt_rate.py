"""Lets vLLM's logger say how fast prompts are computed while they are.

vLLM's logger, in the API process, adds a prompt's computed tokens to the interval in which the first token comes out.
A prefill of minutes is silence for all but one interval, since a server without throughput counts as idle, and a rate
that no card has in that one. Here an interval gets the tokens that the worker was handed in it; over whole prompts the
sum is the same. Everything else of the line stays vLLM's.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from . import snapshot

COMPUTED = "moet_prefill_computed_tokens_total"


def attach(place: Path) -> None:
    """Hook into vLLM's logger; once for a process.

    Args:
        place: folder of the workers' snapshots.

    Raises:
        UnsupportedError: the logger does not count prompt tokens as the pinned one does.
    """
    from vllm.v1.metrics.loggers import LoggingStatLogger

    original = getattr(LoggingStatLogger, "_update_stats", None)
    if original is None or "num_prompt_tokens" not in original.__code__.co_names:
        raise UnsupportedError("vLLM's logger does not count prompt tokens; this vLLM is not the pinned one")

    @functools.wraps(original)
    def _update_stats(self: Any) -> None:
        computed = of_worker(place)
        if computed is not None:
            before = getattr(self, "_moet_computed", 0)
            # A worker that began anew counts from zero.
            self.num_prompt_tokens = computed - before if computed >= before else computed
            self._moet_computed = computed
        original(self)

    LoggingStatLogger._update_stats = _update_stats


def of_worker(place: Path) -> int | None:
    """Prompt tokens that the first worker was handed so far; None where it does not report."""
    look = snapshot.read(place).get(0)
    if look is None or not look.up():
        return None
    value = look.values.get(COMPUTED)
    return None if value is None else int(value)  # type: ignore[arg-type]
