"""How bytes get to the device and back, and marks that say when. The one place where a CPU and a GPU differ.

    running thread     runs the steps; copies in the order of steps; may ask whether a mark has passed, never waits
    manager's thread   fills rows beside the steps; may wait

On a GPU the running thread's copies go to its current stream, the one that computes the steps, and rows go to a
stream of their own. Submitting a step does not mean that it has run: only a mark says so.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Mark(Protocol):
    """A moment on the device: everything submitted before it on its stream."""

    def done(self) -> bool:
        """Whether the moment has passed. Never waits."""

    def wait(self) -> None:
        """Return once it has passed. For the manager's thread alone."""


class Transfer(Protocol):
    """What the pool and the manager ask of a device."""

    def buffer(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeroed host memory that copies can be submitted from and to."""

    def enter_thread(self) -> None:
        """Called once by the manager's thread before anything else."""

    def send(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Running thread: copy a host buffer to the device, in the order of steps. The buffer must stay as it is
        until the next mark has passed."""

    def take(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Running thread: move what is on the device to a host buffer and leave zeros, in the order of steps. The
        buffer is valid once the next mark has passed."""

    def mark(self) -> Mark:
        """Running thread: the moment after everything that was submitted so far."""

    def fill(self, target: torch.Tensor, source: torch.Tensor, after: Mark) -> Mark:
        """Manager's thread: copy host memory to the device, not before a moment; the mark of the copy's end."""

    def peek(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        """Any one thread: copy what is on the device now to a host buffer, beside the steps and in no order with them;
        the mark of the copy's end. Words of 8 bytes come whole."""


def of(device: torch.device) -> Transfer:
    """The transfer of a device."""
    return CudaTransfer(device) if device.type == "cuda" else HostTransfer()


class Passed:
    """A moment that has passed."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


class HostTransfer:
    """On a CPU whatever was called is done when the call returns."""

    def buffer(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cpu")

    def enter_thread(self) -> None:
        return None

    def send(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def take(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)
        source.zero_()

    def mark(self) -> Mark:
        return Passed()

    def fill(self, target: torch.Tensor, source: torch.Tensor, after: Mark) -> Mark:
        after.wait()
        target.copy_(source)
        return Passed()

    def peek(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        target.copy_(source)
        return Passed()


class CudaTransfer:
    """Pinned buffers, events, and one stream for what goes beside the steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = torch.cuda.Stream(device)

    def buffer(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        # The device is named: while a model is built, vLLM makes the GPU the default one.
        return torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=True)

    def enter_thread(self) -> None:
        torch.cuda.set_device(self._device)

    def send(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def take(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        source.zero_()

    def mark(self) -> Mark:
        return _Event(torch.cuda.current_stream(self._device))

    def fill(self, target: torch.Tensor, source: torch.Tensor, after: Mark) -> Mark:
        if isinstance(after, _Event):
            self._beside.wait_event(after.event)  # the GPU waits, not this thread
        return self.peek(target, source)

    def peek(self, target: torch.Tensor, source: torch.Tensor) -> Mark:
        with torch.cuda.stream(self._beside):
            target.copy_(source, non_blocking=True)
        return _Event(self._beside)


class _Event:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        # Blocking: a thread that waits sleeps instead of spinning on a core that the steps need.
        self.event = torch.cuda.Event(blocking=True)
        self.event.record(stream)

    def done(self) -> bool:
        return self.event.query()

    def wait(self) -> None:
        self.event.synchronize()
