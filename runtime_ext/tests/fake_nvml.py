"""A driver for tests: what pynvml offers, over made-up GPUs, and a machine's /proc and /sys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


@dataclass
class Card:
    """One made-up GPU; ``None`` in ``link`` or ``state`` stands for what the driver does not tell."""

    name: str = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    uuid: str = "GPU-0f"
    pci: str = "00000000:31:00.0"
    capability: tuple[int, int] = (12, 0)
    total: int = 96 * GIB
    free: int = 95 * GIB
    compute: tuple[tuple[int, int | None], ...] | None = ()
    graphics: tuple[tuple[int, int | None], ...] = ()
    link: tuple[int, int, int, int] | None = (5, 16, 5, 16)
    state: int | None = 0
    mig: tuple[int, int] | None = None


class NVMLError(Exception):
    """What pynvml raises."""


@dataclass
class Nvml:
    """Stands for the module pynvml. ``opened`` counts nvmlInit less nvmlShutdown."""

    cards: list[Card] = field(default_factory=lambda: [Card()])
    driver: str = "580.95.05"
    cuda: int = 13000
    broken: str | None = None
    opened: int = 0
    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        if self.broken is not None:
            raise NVMLError(self.broken)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlDeviceGetName(self, card: Card) -> bytes:
        return card.name.encode()  # older releases of pynvml give bytes

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetPciInfo(self, card: Card) -> Any:
        return SimpleNamespace(busId=card.pci.encode())

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        return card.capability

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        return SimpleNamespace(total=card.total, free=card.free, used=card.total - card.free)

    def nvmlDeviceGetMigMode(self, card: Card) -> tuple[int, int]:
        return _told(card.mig)

    def nvmlDeviceGetPerformanceState(self, card: Card) -> int:
        return _told(card.state)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card: Card) -> int:
        return _told(card.link)[0]

    def nvmlDeviceGetCurrPcieLinkWidth(self, card: Card) -> int:
        return _told(card.link)[1]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, card: Card) -> int:
        return _told(card.link)[2]

    def nvmlDeviceGetMaxPcieLinkWidth(self, card: Card) -> int:
        return _told(card.link)[3]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in _told(card.compute)]

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in card.graphics]


def _told(value: Any) -> Any:
    if value is None:
        raise NVMLError("Not Supported")
    return value


def machine(root: Path, **changes: str) -> Path:
    """A machine with one node, 100 GiB free and no memlock limit; ``changes`` replace files, slashes written as __."""
    contents = {
        "proc/self/status": "Name:\tmoet\nVmLck:\t0 kB\nCapEff:\t0000000000004000\nMems_allowed_list:\t0\n",
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {100 * GIB >> 10} kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/devices/system/node/online": "0\n",
        "sys/devices/system/node/node0/cpulist": "0-1023\n",
        "sys/devices/system/node/node0/meminfo": f"Node 0 MemFree: {100 * GIB >> 10} kB\n",
        "sys/bus/pci/devices/0000:31:00.0/numa_node": "0\n",
    }
    for name, text in (contents | {name.replace("__", "/"): text for name, text in changes.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root
