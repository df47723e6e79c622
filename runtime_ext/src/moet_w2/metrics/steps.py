"""Counts what the worker is handed, on the thread that runs the steps: integers only, no lock, nothing that waits.

vLLM attributes a prompt's tokens when its first token comes out, so a long prefill is nothing for minutes and then one
peak. Here they are counted at each step. A step is handed over before it has run: under asynchronous scheduling the
counts are up to two steps ahead of the device.

Other threads read single attributes; each is replaced as a whole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput


@dataclass
class Prompt:
    """A prompt that is being computed.

    Attributes:
        total: its tokens; cached: those from the prefix cache; done: those handed over so far, less the cached.
        began: when its first part was handed over, clock seconds.
        again: whether the request was preempted and starts over.
        before, last: tokens handed over before the newest part, and when that part was, clock seconds.
    """

    total: int
    cached: int
    began: float
    again: bool
    done: int = 0
    before: int = 0
    last: float = 0.0

    @property
    def left(self) -> int:
        return self.total - self.cached - self.done


@dataclass(frozen=True)
class Open:
    """All prompts that are being computed, added up.

    Attributes:
        requests: their number.
        total, cached, done: sums of :class:`Prompt`'s.
        since: when the first of them began, clock seconds.
    """

    requests: int = 0
    total: int = 0
    cached: int = 0
    done: int = 0
    since: float = 0.0

    @property
    def left(self) -> int:
        return self.total - self.cached - self.done


class Steps:
    """Running totals of one worker, from the moment that it can serve.

    Attributes:
        active: warm-up is over; before, nothing is counted.
        steps: steps with tokens; last_unix: when the last one was handed over, Unix seconds, 0 before any.
        computed, cached, recomputed: prompt tokens, see :mod:`moet_w2.metrics.table`.
        open: the prompts that are being computed.
        finished: prompts whose last part has been handed over, for who wants to tell of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.active = False
        self.steps, self.last_unix = 0, 0.0
        self.computed = self.cached = self.recomputed = 0
        self.open = Open()
        self.finished: deque[Prompt] = deque(maxlen=64)
        self._clock = clock
        self._prompts: dict[str, Prompt] = {}
        self._preempted: set[str] = set()

    def note(self, output: SchedulerOutput) -> None:
        """A step is about to run.

        Args:
            output: what vLLM's scheduler hands to the worker.
        """
        if not self.active:
            return
        if output.finished_req_ids or output.preempted_req_ids:
            self._forget(output)
        for request in output.scheduled_new_reqs:
            self._begin(request)
        if self._prompts:
            self._advance(output)
        if output.total_num_scheduled_tokens:
            self.steps += 1
            self.last_unix = time.time()

    def _begin(self, request: NewRequestData) -> None:
        # A request that was preempted comes back as a new one; its own output is part of what it prefills then.
        tokens = request.prefill_token_ids or request.prompt_token_ids or ()
        total, again = len(tokens), request.req_id in self._preempted
        cached = min(request.num_computed_tokens, total)
        self._preempted.discard(request.req_id)
        if not again:
            self.cached += cached
        self._prompts[request.req_id] = Prompt(total, cached, self._clock(), again)

    def _advance(self, output: SchedulerOutput) -> None:
        now = self._clock()
        for name, prompt in list(self._prompts.items()):
            part = min(output.num_scheduled_tokens.get(name, 0), prompt.left)
            if part:
                prompt.before, prompt.last = prompt.done, now
                prompt.done += part
                self.computed += part
                if prompt.again:
                    self.recomputed += part
            if not prompt.left:
                del self._prompts[name]
                self.finished.append(prompt)
        self._add_up()

    def _forget(self, output: SchedulerOutput) -> None:
        preempted = output.preempted_req_ids or set()
        for name in output.finished_req_ids:
            self._prompts.pop(name, None)
            self._preempted.discard(name)
        for name in preempted:
            self._prompts.pop(name, None)
            self._preempted.add(name)
        self._add_up()

    def _add_up(self) -> None:
        prompts = self._prompts.values()
        self.open = Open(
            len(prompts),
            sum(prompt.total for prompt in prompts),
            sum(prompt.cached for prompt in prompts),
            sum(prompt.done for prompt in prompts),
            min((prompt.began for prompt in prompts), default=0.0),
        )
