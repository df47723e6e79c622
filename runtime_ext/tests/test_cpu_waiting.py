"""How processes of a CPU server wait for one another: messages arrive, and waiting costs next to no CPU time."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from vllm.distributed.device_communicators import shm_broadcast

from moet_w2.cpu import waiting
from moet_w2.errors import UnsupportedError

WAIT = 0.4
"""Seconds between two messages, of the one in which vLLM's readers would look without a pause."""


def test_a_reader_sleeps_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr(shm_broadcast, "sched_yield", lambda: looks.append(0))
    read_two()
    assert len(looks) > 5 * WAIT / waiting.SECONDS, "vLLM's reader no longer looks without a pause"
    waiting.attach(shm_broadcast)
    looks.clear()
    seconds, received = read_two()
    assert received == ["first", "second"] and seconds < WAIT / 2 and not looks


def read_two() -> tuple[float, list[str]]:
    """CPU seconds of a reader between two messages :data:`WAIT` seconds apart, and the messages."""
    writer = shm_broadcast.MessageQueue(1, 1)
    reader = shm_broadcast.MessageQueue.create_from_handle(writer.export_handle(), 0)
    received: list[str] = []
    used: list[float] = []

    def read() -> None:
        reader.wait_until_ready()
        received.append(reader.dequeue(timeout=30))
        before = time.thread_time()
        received.append(reader.dequeue(timeout=30))
        used.append(time.thread_time() - before)

    thread = threading.Thread(target=read)
    thread.start()
    writer.wait_until_ready()
    writer.enqueue("first")
    while not received:
        time.sleep(0.001)
    time.sleep(WAIT)
    writer.enqueue("second")
    thread.join(30)
    return used[0], received


def spinning() -> None:
    while True:
        pass


@pytest.mark.parametrize("part", ["SpinCondition", "MessageQueue"])
def test_another_vllm_is_refused(part: str) -> None:
    parts = {"SpinCondition": shm_broadcast.SpinCondition, "MessageQueue": shm_broadcast.MessageQueue}
    queues = SimpleNamespace(**parts | {part: SimpleNamespace(wait=spinning, acquire_write=spinning)})
    with pytest.raises(UnsupportedError, match="spinning does not wait as the pinned vLLM's does"):
        waiting.attach(queues)
    assert not hasattr(queues, "sched_yield")
