"""A run's progress on stderr: a line an invocation, and a sign of life while one takes long."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .errors import ServerError
from .talk import Record
from .wire import Server

LEFT = re.compile(r"^moet_prefill_remaining_tokens(?:\{[^}]*\})? ([0-9.e+]+)$", re.M)


def tell(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)


def done(number: int, total: int, name: str, record: Record, faults: list[str]) -> None:
    """An invocation is over."""
    seconds = sum(exchange.seconds for exchange in record.exchanges)
    tokens = sum((exchange.answer.usage or {}).get("completion_tokens", 0) for exchange in record.exchanges)
    said = "ok" if not faults else f"FAULT: {faults[0]}"
    tell(f"[{number}/{total}] {name}: {len(record.exchanges)} requests, {seconds:.1f} s, {tokens} tokens: {said}")


@contextmanager
def alive(name: str, server: Server, every: float) -> Iterator[None]:
    """Every so many seconds: how long it has taken, and how much prefill is left by the server's own count."""
    ended, start = threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(every):
            tell(f"      {name}: {time.monotonic() - start:.0f} s{_left(server.get)}")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _left(get: Callable[[str], str]) -> str:
    with suppress(ServerError):
        if (found := LEFT.search(get("/metrics"))) and (left := int(float(found[1]))):
            return f", {left:,} prompt tokens left"
    return ""
