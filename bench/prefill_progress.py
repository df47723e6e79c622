"""A long prefill as /metrics shows it while it runs: our counter beside vLLM's, sampled every second.

    python bench/prefill_progress.py --model NAME --tokens N [--host HOST] [--port PORT] [--out FILE]

Needs a running server. vLLM adds a prompt's tokens when its first token comes out; the result's ``largest_rate`` is
what a reader of ten-second intervals sees at most, from either counter, beside what the client measured.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import facts
from serving_client import Client

INTERVAL_SECONDS = 10.0
"""Over which vLLM's logger takes its rates."""
SERIES = {
    "moet": "moet_prefill_computed_tokens_total",
    "vllm": 'vllm:prompt_tokens_by_source_total{source="local_compute"}',
}
"""Two counters of computed prompt tokens."""
SEED = 1


class Progress:
    """Samples both counters from its beginning to its end; a context manager."""

    def __init__(
        self,
        metrics: Callable[[], dict[str, float]],
        every: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare.

        Args:
            metrics: gives the samples of /metrics, as :meth:`serving_client.Client.metrics`.
            every: seconds between two looks.
            clock: in seconds.
        """
        self._metrics, self._every, self._clock = metrics, every, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[dict[str, float]] = []

    def __enter__(self) -> Progress:
        self._began, self._first = self._clock(), self._metrics()
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Take one sample: seconds since the beginning, and how much each counter has grown since."""
        now = self._metrics()
        grown = {key: now.get(name, 0.0) - self._first.get(name, 0.0) for key, name in SERIES.items()}
        self.samples.append({"seconds": self._clock() - self._began} | grown)

    def result(self) -> dict[str, Any]:
        """The samples, and for each counter in how many of them it moved and its largest rate over an interval."""
        return {
            "samples": self.samples,
            "moved": {key: _moves(self.samples, key) for key in SERIES},
            "largest_rate": {key: _largest_rate(self.samples, key) for key in SERIES},
        }

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.look()


def _moves(samples: list[dict[str, float]], key: str) -> int:
    return sum(later[key] > earlier[key] for earlier, later in zip(samples, samples[1:], strict=False))


def _largest_rate(samples: list[dict[str, float]], key: str) -> float:
    """Tokens a second: the largest growth within an interval, taken as if it had lasted the whole of it."""
    grown = [
        later[key] - earlier[key]
        for index, earlier in enumerate(samples)
        for later in samples[index:]
        if later["seconds"] - earlier["seconds"] <= INTERVAL_SECONDS
    ]
    return max(grown, default=0.0) / INTERVAL_SECONDS


def measure(client: Client, prompt: list[int], limit: float) -> dict[str, Any]:
    """One token after a prompt that nothing is cached of, watched; seconds that it may take: ``limit``."""
    with Progress(client.metrics) as seen:
        done = client.complete(prompt, 1, limit)
        time.sleep(2.0)  # the worker's snapshot is written every second
    seconds = done.first_token_seconds
    measured = {"first_token_seconds": seconds, "prompt_tokens_per_s": done.prompt_tokens / seconds}
    return {"prompt_tokens": done.prompt_tokens, "client": measured} | seen.result()


def main() -> None:
    parser = argparse.ArgumentParser(description="a long prefill as /metrics shows it")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", required=True, help="served name")
    parser.add_argument("--tokens", type=int, required=True, help="length of the prompt")
    parser.add_argument("--vocabulary", type=int, default=256, help="token ids are drawn below this")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that it may take")
    parser.add_argument("--out", type=Path, help="write a result file")
    args = parser.parse_args()
    noise = random.Random(SEED)
    prompt = [noise.randrange(3, args.vocabulary) for _ in range(args.tokens)]
    measured = measure(Client(args.host, args.port, args.model), prompt, args.limit)
    print({key: value for key, value in measured.items() if key != "samples"})
    if args.out is not None:
        facts.write(args.out, {"benchmark": "prefill_progress", **measured})


if __name__ == "__main__":
    main()
