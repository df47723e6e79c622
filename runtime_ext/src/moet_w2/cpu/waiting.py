"""Processes of a CPU server sleep between two looks at the queue that they share.

For a second after each message a reader of vLLM's shared-memory queues looks again and again, and does no more than
sched_yield in between. Beside a GPU a core has nothing better to do. Where the CPU computes, the engine's process takes
a core from those that compute, for as long as requests are answered: of 6.4 s of decoding on 2 cores it used 6.4. Linux
6.18 made it worse than that: a third process, which needs 16 s alone, had been given 6 s of CPU time after ten minutes.

With a look every 0.2 ms the engine's process uses a tenth of that, and the third process ends after 18 s. What it costs
is lost in the noise of that machine: steps of 65 ms became 11 % longer in 14 turns of 0.2 ms and no pause at all in one
server; in 8 turns each, 0.5 ms made them 2 % longer and 0.1 ms 3 % shorter. What vLLM does after that second, waiting
for the writer's notification, stays.
"""

from __future__ import annotations

import inspect
import time
from types import ModuleType

from ..errors import UnsupportedError

SECONDS = 0.0002


def attach(queues: ModuleType) -> None:
    """Have the queues' readers and writers sleep where they would yield. Idempotent.

    Args:
        queues: the module ``vllm.distributed.device_communicators.shm_broadcast``.

    Raises:
        UnsupportedError: its readers or writers wait in another way than the pinned vLLM's.
    """
    for waiting in (queues.SpinCondition.wait, queues.MessageQueue.acquire_write):
        code = inspect.unwrap(waiting).__code__
        if "sched_yield" not in code.co_names:
            raise UnsupportedError(f"{waiting.__qualname__} does not wait as the pinned vLLM's does")
    queues.sched_yield = _sleep  # type: ignore[attr-defined]


def _sleep() -> None:
    time.sleep(SECONDS)
