"""vLLM's own logger over a long prefill: steady, neither silent nor a peak."""

import logging
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.v1.metrics import loggers
from vllm.v1.metrics.stats import IterationStats, PrefillStats, SchedulerStats

from moet_w2.errors import UnsupportedError
from moet_w2.metrics import prompt_rate, snapshot
from moet_w2.metrics.snapshot import Snapshot


def worker_reports(place: Path, computed: int | None, age: float = 0.0) -> None:
    values = {} if computed is None else {prompt_rate.COMPUTED: computed}
    ticks = snapshot.process_ticks() or 0
    Snapshot(0, 1, os.getpid(), ticks, time.time() - age, {}, values).write(place)


def first_token(logger: loggers.LoggingStatLogger, prompt: int) -> None:
    """What vLLM records when a prompt's first token comes out."""
    stats = IterationStats()
    prefill = PrefillStats()
    prefill.set(prompt, 0, 0)
    stats.prompt_token_stats.update_from_output(prefill)
    stats.num_generation_tokens = 1
    logger.record(SchedulerStats(), stats)


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(loggers.time, "monotonic", lambda: now.seconds)
    return now


@pytest.fixture
def logger(monkeypatch, tmp_path: Path, clock):
    """vLLM's logger, ours hooked into it."""
    kind = loggers.LoggingStatLogger
    monkeypatch.setattr(kind, "_update_stats", kind._update_stats)
    config = SimpleNamespace(
        device_config=SimpleNamespace(device_type="cuda"),
        model_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        observability_config=SimpleNamespace(cudagraph_metrics=False, enable_mfu_metrics=False),
    )
    prompt_rate.attach(tmp_path)
    return kind(config)


def rates(logger, clock, place: Path, computed: list[int | None]) -> list[str]:
    """The logger's line for each interval of ten seconds, by its level and its prompt throughput."""
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "Avg prompt throughput" in record.msg:
                seen.append(f"{record.levelname} {record.args[0]:.1f}")

    handler, level = Handler(), loggers.logger.level
    loggers.logger.addHandler(handler)
    loggers.logger.setLevel(logging.DEBUG)
    try:
        for number, total in enumerate(computed):
            clock.seconds += 10
            worker_reports(place, total)
            if number == len(computed) - 3:
                first_token(logger, 100_000)
            logger.log()
    finally:
        loggers.logger.removeHandler(handler)
        loggers.logger.setLevel(level)
    return seen


PREFILL = [0, 30_000, 60_000, 90_000, 100_000, 100_000, 100_000]


def test_a_long_prefill_is_steady_in_vllms_own_line(logger, clock, tmp_path: Path) -> None:
    lines = rates(logger, clock, tmp_path, PREFILL)
    assert lines[:5] == ["DEBUG 0.0", "INFO 3000.0", "INFO 3000.0", "INFO 3000.0", "INFO 1000.0"]
    assert [line.split()[1] for line in lines[5:]] == ["0.0", "0.0"]


def test_without_ours_it_is_silence_and_one_peak(logger, clock, tmp_path: Path) -> None:
    """A worker that does not report leaves vLLM's own count: what this is for."""
    lines = rates(logger, clock, tmp_path, [None] * len(PREFILL))
    assert lines[:5] == ["DEBUG 0.0"] * 4 + ["INFO 10000.0"]


def test_a_worker_that_began_anew_gives_no_negative_rate(logger, clock, tmp_path: Path) -> None:
    assert rates(logger, clock, tmp_path, [50_000, 20_000])[1] == "INFO 2000.0"


def test_a_worker_that_hangs_is_not_asked(tmp_path: Path) -> None:
    worker_reports(tmp_path, 7)
    assert prompt_rate.of_worker(tmp_path) == 7
    worker_reports(tmp_path, 7, age=60)
    assert prompt_rate.of_worker(tmp_path) is None
    assert prompt_rate.of_worker(tmp_path / "none") is None


def test_another_logger_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loggers.LoggingStatLogger, "_update_stats", lambda self: None)
    with pytest.raises(UnsupportedError, match="does not count prompt tokens"):
        prompt_rate.attach(tmp_path)
    monkeypatch.delattr(loggers.LoggingStatLogger, "_update_stats")
    with pytest.raises(UnsupportedError, match="does not count prompt tokens"):
        prompt_rate.attach(tmp_path)
