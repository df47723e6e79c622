"""A prefill that is watched: steady by our counter, one peak by vLLM's."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import prefill_progress
from prefill_progress import SERIES, Progress

from moet_w2.metrics.table import METRICS

TOTAL, RATE = 60_000, 2_000


class Server:
    """Counters of a server that computes RATE tokens a second and tells vLLM's counter of them at the end."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def metrics(self) -> dict[str, float]:
        done = min(TOTAL, RATE * (self.now - 100.0))
        return {SERIES["moet"]: 7 + done, SERIES["vllm"]: 7 + (TOTAL if done == TOTAL else 0)}


def watched() -> dict:
    server = Server()
    progress = Progress(server.metrics, every=1e9, clock=server.clock)
    with progress:
        for _ in range(32):
            server.now += 1
            progress.look()
    return progress.result()


def test_both_counters_end_alike_and_move_unlike() -> None:
    result = watched()
    assert result["samples"][0] == {"seconds": 0.0, "moet": 0.0, "vllm": 0.0}
    assert result["samples"][-1] == {"seconds": 32.0, "moet": TOTAL, "vllm": TOTAL}
    assert result["moved"] == {"moet": 30, "vllm": 1}
    assert result["largest_rate"] == {"moet": pytest.approx(RATE), "vllm": TOTAL / 10}


def test_a_thread_looks_by_itself() -> None:
    server = Server()
    looks = []

    def metrics() -> dict[str, float]:
        looks.append(1)
        server.now += 1
        return server.metrics()

    with Progress(metrics, every=0.001, clock=server.clock) as progress:
        while len(looks) < 5:
            pass
    assert len(progress.samples) >= 4 and progress.samples[-1]["moet"] > 0


def test_a_server_without_a_counter_has_not_moved() -> None:
    with Progress(dict, every=1e9) as progress:
        pass
    assert progress.result()["moved"] == {"moet": 0, "vllm": 0}


def test_the_counter_is_one_that_is_exported() -> None:
    assert SERIES["moet"] in {metric.name for metric in METRICS}
    assert prefill_progress.INTERVAL_SECONDS == 10.0
