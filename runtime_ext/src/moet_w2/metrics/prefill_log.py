"""A line every ten seconds of a long prefill, in which vLLM's own logger says nothing, and one when it is over.

vLLM's logger adds a prompt's tokens to the interval in which its first token comes out: no line for minutes, then a
rate that no card has. These lines say what is done and how fast.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .steps import Prompt, Steps

logger = logging.getLogger("vllm.moet_w2.prefill")

INTERVAL_SECONDS = 10.0
"""Between two lines; a prefill that is over sooner is not told of."""


class PrefillLog:
    """Watches the prompts of a worker."""

    def __init__(self, tell: Callable[[str], None] = logger.info, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._base, self._base_computed = clock(), 0

    def look(self, steps: Steps) -> None:
        """Tell what is due; called about every second."""
        while steps.finished:
            prompt = steps.finished.popleft()
            if prompt.last - prompt.began >= INTERVAL_SECONDS:
                self._tell(_whole(prompt))
        now, here, computed = self._clock(), steps.open, steps.computed
        if not here.requests:
            self._base, self._base_computed = now, computed
            return
        since = max(self._base, here.since)
        if now - since < INTERVAL_SECONDS:
            return
        rate = (computed - self._base_computed) / (now - since)
        several = f" in {here.requests} requests" if here.requests > 1 else ""
        self._tell(
            f"prefill: {here.cached + here.done:,} of {here.total:,} tokens{several}, {rate:,.0f} tok/s, "
            f"{here.cached:,} cached"
        )
        self._base, self._base_computed = now, computed


def _whole(prompt: Prompt) -> str:
    # The newest part has only just been handed over: what came before it has run in the time until then.
    seconds = prompt.last - prompt.began
    return (
        f"prefill: all of {prompt.total:,} tokens handed over after {seconds:.1f} s, {prompt.before / seconds:,.0f} "
        f"tok/s, {prompt.cached:,} cached"
    )
