"""Power, PCIe traffic and busy time of one GPU, sampled by NVML beside whatever runs.

NVML's PCIe counters are means over the 20 ms before each question. Busy is the share of time in which any kernel ran,
over a span of NVML's own, 1/6 to 1 s (nvmlUtilization_t); a GPU that waits for its host's launches shows there. Energy
is the driver's own counter where the device has one. Nothing is allocated on the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EVERY_SECONDS = 0.25


class Gauges:
    """One GPU's gauges.

    Attributes:
        absent: why there is nothing to read, or None.
    """

    def __init__(self, gpu: str = "0", library: Any = None) -> None:
        """Open NVML.

        Args:
            gpu: number of the device by PCI address, or its UUID.
            library: the module ``pynvml``, or what stands for it in a test.
        """
        self.absent: str | None = None
        self._library = library
        try:
            if library is None:
                import pynvml

                self._library = pynvml
            self._library.nvmlInit()
            find = (
                self._library.nvmlDeviceGetHandleByIndex if gpu.isdigit() else self._library.nvmlDeviceGetHandleByUUID
            )
            self._device = find(int(gpu) if gpu.isdigit() else gpu)
        except ImportError:
            self.absent = "nvidia-ml-py is not installed"
        except self._library.NVMLError as error:
            self.absent = str(error)

    @contextmanager
    def phase(self, every: float = EVERY_SECONDS) -> Iterator[Callable[[], dict[str, Any] | None]]:
        """Sample until the context ends; what it gives then tells what was seen, or None where nothing can be."""
        if self.absent is not None:
            yield lambda: None
            return
        seen: list[tuple[float | None, ...]] = []
        ended, before = threading.Event(), self._energy()

        def sample() -> None:
            while True:
                seen.append(self._sample())
                if ended.wait(every):
                    return

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        told: dict[str, Any] = {}
        try:
            yield lambda: told
        finally:
            ended.set()
            thread.join()
            after = self._energy()
            power, to_gpu, from_gpu, busy = (_span(values) for values in zip(*seen, strict=True))
            told |= {
                "samples": len(seen),
                "power_watts": power,
                "energy_joules": None if before is None or after is None else after - before,
                "busy_percent": busy,
                "pcie_to_gpu_gb_per_s": to_gpu,
                "pcie_from_gpu_gb_per_s": from_gpu,
                "link": self._link(),
            }

    def _sample(self) -> tuple[float | None, ...]:
        library = self._library
        watts = self._ask(library.nvmlDeviceGetPowerUsage)  # mW
        received = self._ask(library.nvmlDeviceGetPcieThroughput, library.NVML_PCIE_UTIL_RX_BYTES)  # KB/s
        sent = self._ask(library.nvmlDeviceGetPcieThroughput, library.NVML_PCIE_UTIL_TX_BYTES)
        busy = self._ask(library.nvmlDeviceGetUtilizationRates)
        busy = None if busy is None else float(busy.gpu)
        return _scaled(watts, 1e-3), _scaled(received, 1e-6), _scaled(sent, 1e-6), busy

    def _energy(self) -> float | None:
        return _scaled(self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption), 1e-3)  # mJ

    def _link(self) -> dict[str, int] | None:
        generation = self._ask(self._library.nvmlDeviceGetCurrPcieLinkGeneration)
        width = self._ask(self._library.nvmlDeviceGetCurrPcieLinkWidth)
        return {"generation": generation, "width": width} if generation and width else None

    def _ask(self, question: Callable[..., Any], *words: Any) -> Any:
        """An answer, or None where this device does not give it."""
        try:
            return question(self._device, *words)
        except self._library.NVMLError:
            return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _span(values: tuple[float | None, ...]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return {"mean": sum(known) / len(known), "most": max(known)} if known else None
