"""A stand-in for pynvml as far as runner/gauges.py asks."""

from __future__ import annotations

from types import SimpleNamespace


class Nvml:
    """pynvml as far as gauges ask, of one device; what is named in ``missing`` is not supported there."""

    class NVMLError(Exception):
        pass

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, *missing: str) -> None:
        self.missing, self.watts, self.joules = missing, 100, 0

    def __getattribute__(self, name: str):
        if name.startswith("nvml") and name in object.__getattribute__(self, "missing"):

            def refuse(*_):
                raise Nvml.NVMLError(f"{name}: not supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        return None

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"device {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return f"device {uuid}"

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        self.watts += 100
        return self.watts * 1000

    def nvmlDeviceGetPcieThroughput(self, device: str, counter: int) -> int:
        return 51_400_000 if counter == self.NVML_PCIE_UTIL_RX_BYTES else 1_000

    def nvmlDeviceGetUtilizationRates(self, device: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=63, memory=20)

    def nvmlDeviceGetTotalEnergyConsumption(self, device: str) -> int:
        self.joules += 7
        return self.joules * 1000

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device: str) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: str) -> int:
        return 16
