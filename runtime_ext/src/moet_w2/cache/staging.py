"""From a file to device memory through a ring of pinned buffers, so that the disk and the copy engine work at once.

    buffer 0   read ---- copy
    buffer 1              read ---- copy
    buffer 2                         read ---- copy
    buffer 0                                    wait for its copy, read ---- ...

A buffer belongs to the reader until its copy is enqueued, then to the copy until that is done. Each thread that reads
has a ring and a stream of its own. Pinned memory is nobody else's while it is pinned: it goes back when the load ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import torch

from . import reads

BUFFERS = 3
"""One being read into, one being copied from, one spare for the slower of the two."""

Wait = Callable[[], None]


class Copies(Protocol):
    """Starts copies in order; :class:`CudaCopies` is the one that serves."""

    def start(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        """Begin to copy ``source`` to ``target``, alike in shape; what it returns waits until that is done."""


class CudaCopies:
    """Asynchronous copies on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        # torch's allocator hands memory out again in the order of another stream: its last use must be over.
        torch.cuda.synchronize(device)
        self._stream = torch.cuda.Stream(device)

    def start(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        event = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            event.record(self._stream)
        return event.synchronize


class Ring:
    """Buffers that take turns between a file and a device."""

    def __init__(self, buffers: Sequence[torch.Tensor], copies: Copies) -> None:
        """Args: buffers: uint8 ``[n]`` alike, on the CPU, page-aligned; copies: what empties them."""
        self._buffers, self._copies = buffers, copies

    @classmethod
    def on(cls, device: torch.device) -> Ring:
        """A ring of pinned buffers for a CUDA device."""
        buffers = [torch.empty(reads.CHUNK, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in range(BUFFERS)]
        return cls(buffers, CudaCopies(device))

    def fill(self, target: torch.Tensor, payload: reads.Payload, progress: reads.Progress) -> None:
        """Read a payload into ``target``, uint8 ``[nbytes]`` on the device. Done when it returns.

        Raises:
            OSError: the file cannot be read. No copy is under way any more then either.
        """
        size, count = self._buffers[0].numel(), len(self._buffers)
        waits: list[Wait] = [_done] * count
        try:
            for number, start in enumerate(range(0, target.numel(), size)):
                turn = number % count
                part = target[start : start + size]
                buffer = self._buffers[turn][: part.numel()]
                waits[turn]()
                payload.read(memoryview(buffer.numpy()), start, progress)
                waits[turn] = self._copies.start(part, buffer)
        finally:
            for wait in waits:
                wait()


class Rings:
    """A ring for each thread that asks for one; use as a context, which gives their memory back at its end."""

    def __init__(self) -> None:
        self._of_thread: dict[int, Ring] = {}
        self._devices: set[torch.device] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._of_thread.clear()
        for device in self._devices:
            give_back(device)

    def mine(self, device: torch.device) -> Ring:
        """The ring of the thread that calls, for the one device that it fills."""
        thread = threading.get_ident()
        if thread not in self._of_thread:
            self._of_thread[thread] = Ring.on(device)
            self._devices.add(device)
        return self._of_thread[thread]


def give_back(device: torch.device) -> None:
    """Unpin what was pinned and is free: torch's allocator would keep it for the life of the process."""
    # It keeps a freed block until events say that every stream is done with it: they must have happened.
    torch.cuda.synchronize(device)
    torch.accelerator.empty_host_cache()


def _done() -> None:
    """What to wait for before a buffer's first copy."""
