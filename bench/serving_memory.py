"""The card's memory before and while a server runs: free of others, held to a size, sampled, and told apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from moet_w2.doctor import nvml
from moet_w2.doctor.subject import visible

HOLD = Path(__file__).with_name("hold_memory.py")
OTHERS_MIB = 1024
"""MiB of the card that may be in use before a run: some hundred are a display's or a CUDA context's, which may be this
process's own. A model at work holds many times that; whoever computes with less goes unseen."""


class Memory:
    """Samples the GPU's used memory beside whatever runs; without nvidia-smi there is nothing to sample.

    Attributes:
        before: MiB in use when it was made, or None: what is not the server's.
        peak: most MiB in use so far, of everybody.
        total: MiB of the card, or None.
    """

    def __init__(self, index: str = "0", every: float = 1.0) -> None:
        self.index, self.before, self.peak, self.total = index, None, 0, None
        self._recent, self._every, self._end = 0, every, threading.Event()
        self._thread: threading.Thread | None = None
        if (now := gpu_memory(index)) is not None:
            self.before, self.total = now
            self._see(now[0])
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def mark(self) -> dict[str, int] | None:
        """MiB beyond :attr:`before`: ``now``, and the ``most`` since the mark before this one; None if unknown."""
        now = None if self.before is None else gpu_memory(self.index)
        if now is None or self.before is None:
            return None
        self._see(now[0])
        found = {"now": now[0] - self.before, "most": self._recent - self.before}
        self._recent = now[0]
        return found

    def summary(self) -> dict[str, Any]:
        """``before``, ``peak`` and ``total`` of the card in MiB, and ``own_peak``: the peak less what was before."""
        own = {} if self.before is None else {"own_peak": self.peak - self.before}
        return {"before": self.before, "peak": self.peak, "total": self.total} | own

    def _see(self, used: int) -> None:
        self.peak, self._recent = max(self.peak, used), max(self._recent, used)

    def _sample(self) -> None:
        while not self._end.wait(self._every):
            now = gpu_memory(self.index)
            if now is not None:
                self._see(now[0])


class Held:
    """A process that holds the card to a size (hold_memory.py), for as long as this is open.

    Attributes:
        told: ``to_gib`` as it was asked for, ``held_mib`` and ``free_mib`` as the process said.
    """

    def __init__(self, gib: float, index: str = "0", command: tuple[str, ...] = (sys.executable, str(HOLD))) -> None:
        """Start it and wait until the memory is held.

        Args:
            gib: GiB that are to be free for the server, its CUDA context included.
            index: the GPU, as nvidia-smi counts.
            command: what holds; ``--leave-gib`` is added.

        Raises:
            RuntimeError: it ended instead, with what it said.
        """
        environ = os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": index}
        pipe = subprocess.PIPE
        self._process: Any = subprocess.Popen(
            [*command, "--leave-gib", str(gib)], env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        line = self._process.stdout.readline()
        if not line:
            _, said = self._process.communicate()
            raise RuntimeError(f"the card cannot be held to {gib} GiB: {said.strip()[-500:]}")
        self.told: dict[str, Any] = {"to_gib": gib, **json.loads(line)}

    def close(self) -> None:
        """Give the memory back and wait until it is given."""
        self._process.communicate()


def occupied(index: str = "0") -> str | None:
    """Why a card is not free to be measured on, with the remedy; None where it is, or where nothing tells.

    Args:
        index: the GPU, as nvidia-smi counts, or its UUID.
    """
    now = gpu_memory(index)
    if now is None or now[0] <= OTHERS_MIB:
        return None
    driver = nvml.read()
    gpus = () if isinstance(driver, nvml.Absent) else visible(driver.gpus, index)
    others = [_holder(process) for gpu in gpus for process in gpu.processes if process.pid != os.getpid()]
    return (
        f"GPU {index}: {now[0]:,} MiB are held by {', '.join(others) or 'processes that NVML does not name here'}, and "
        f"{OTHERS_MIB:,} at most may be before a run; end them, or choose another card by CUDA_VISIBLE_DEVICES"
    )


def _holder(process: nvml.Process) -> str:
    size = "" if process.nbytes is None else f" ({process.nbytes >> 20:,} MiB)"
    return f"process {process.pid}{size}"


def gpu_memory(index: str = "0") -> tuple[int, int] | None:
    """MiB used and in all of one GPU, or None where nvidia-smi does not say."""
    ask = ["nvidia-smi", f"--id={index}", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20)
        used, total = done.stdout.strip().split(",")
        return int(used), int(total)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
