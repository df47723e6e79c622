"""What a start tells of itself: progress while it reads, and its phases at the end."""

import io
import json
import logging
import time
from pathlib import Path

import pytest
import torch
from generators import TINY, filled_layer

from moet_w2.cache import layout, phases, progress
from moet_w2.cache.key import CacheKey
from moet_w2.cache.phases import Phases
from moet_w2.cache.progress import Progress
from moet_w2.cache.publish import publish
from moet_w2.errors import UnsupportedError
from moet_w2.layer import Shard


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_no_lines(caplog) -> None:
    caplog.set_level("INFO")
    terminal = Terminal()
    with Progress("planes", 2, 2 << 20, terminal) as shown:
        shown.add(1 << 20)
        shown.add(1 << 20)
    assert "planes: 100%" in terminal.getvalue() and "2.00M/2.00M" in terminal.getvalue()
    assert caplog.text == ""


def test_a_log_gets_a_line_every_few_seconds_and_one_at_the_end(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines: list[str] = []
    with Progress("planes", 10, 10 << 30, io.StringIO(), lines.append) as shown:
        for _ in range(10):  # a GiB a second
            now[0] += 1.0
            shown.add(1 << 30)
    assert lines == [
        "planes: 5.00 of 10.00 GiB (10 layers), 1.00 GiB/s, 5 s left",
        "planes: 10.00 of 10.00 GiB (10 layers), 1.00 GiB/s, 0 s left",
        "planes: 10.00 of 10.00 GiB (10 layers), 1.00 GiB/s, 0 s left",
    ]


def test_nothing_to_read_says_nothing() -> None:
    lines: list[str] = []
    with Progress("planes", 0, 0, Terminal(), lines.append):
        pass
    assert lines == []


# ---- phases


def worker_class() -> type:
    """A worker as vLLM has one: it inherits one of the calls."""

    class Base:
        def __init__(self):
            self.calls = []

        def initialize_from_config(self, config):
            self.calls.append(("initialize", config))

    class Worker(Base):
        def determine_available_memory(self):
            self.calls.append("determine")
            time.sleep(0.01)
            return 42

        def compile_or_warm_up_model(self):
            self.calls.append("warm up")
            return "times"

    return Worker


def test_the_calls_of_the_worker_are_measured_and_told_once(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", logger="vllm.moet_w2.cache")
    kind, start, settled = worker_class(), Phases(), []
    phases.attach(kind, start, lambda: settled.append(list(worker.calls)), lambda: start.tell(tmp_path / "audit.json"))
    phases.attach(kind, start, lambda: settled.append("twice"), lambda: None)
    worker = kind()
    start.add("planes", 1.5)
    with start.measure("target rest"):
        pass
    assert worker.determine_available_memory() == 42
    worker.initialize_from_config("some")
    assert not (tmp_path / "audit.startup.json").exists()
    assert worker.compile_or_warm_up_model() == "times"
    # What is being written is on the disk before each call, so before a graph can be captured.
    assert settled == [[], ["determine"], ["determine", ("initialize", "some")]]
    document = json.loads((tmp_path / "audit.startup.json").read_text())
    seconds = document["seconds"]
    assert list(seconds) == list(phases.NAMES) and seconds["planes"] == 1.5 and seconds["KV"] >= 0.01
    assert seconds["draft rest"] is None and seconds["eligibility"] is None
    assert 0 < document["since_process_start"] < 3600
    assert "moet start-up: planes 1.500 s, target rest 0.000 s, publish 0.000 s, KV 0.01" in caplog.text
    assert f"moet start-up as JSON: {json.dumps(document)[:40]}" in caplog.text
    worker.compile_or_warm_up_model()
    assert caplog.text.count("as JSON") == 1


def test_a_worker_without_one_of_the_calls_is_refused() -> None:
    kind = worker_class()
    del kind.compile_or_warm_up_model
    with pytest.raises(
        UnsupportedError, match="compile_or_warm_up_model is not there; this vLLM is not the pinned one"
    ):
        phases.attach(kind, Phases(), lambda: None, lambda: None)


def test_the_pinned_workers_have_the_calls() -> None:
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu_worker import Worker

    for kind in (CPUWorker, Worker):
        assert all(callable(getattr(kind, name)) for name in phases.WORKER_CALLS)


def test_a_phase_that_fails_is_measured_too() -> None:
    start = Phases()
    with pytest.raises(ZeroDivisionError), start.measure("planes"):
        _ = 1 / 0
    assert "planes" in start.seconds


def test_a_layer_on_a_device_is_published_when_the_device_is_done(tmp_path: Path, monkeypatch) -> None:
    """Quantising is enqueued by another thread: without waiting, what is written may be what was there before."""
    layer, _ = filled_layer(TINY)
    final = layer.storage.clone()
    layer.storage.zero_()

    class OnDevice(torch.Tensor):
        is_cuda = True

    key = CacheKey("checkpoint-a", TINY, Shard(), 1)
    layer.storage = layer.storage.as_subclass(OnDevice)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: layer.storage.copy_(final))
    publish(tmp_path, key, layer)
    written = layout.payload_path(layout.folder(tmp_path, key), 0).read_bytes()[layout.HEAD :]
    assert written == final.numpy().tobytes()


def test_loggers_are_below_vllms() -> None:
    """vLLM configures its own logger alone; a name beside it would stay silent."""
    assert phases.logger is logging.getLogger("vllm.moet_w2.cache") is progress.logger
