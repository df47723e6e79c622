"""The border to NVML: what the driver says of its GPUs, read once, as small frozen facts.

NVML (NVIDIA Management Library) is reached through pynvml, which loads libnvidia-ml.so.1 of the driver. It needs no
CUDA context, so nothing is allocated on the GPU. A fact that a driver or a device does not offer is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..topology import normalize_pci


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a GPU. ``nbytes`` is None where the driver does not tell (in a container)."""

    pid: int
    nbytes: int | None


@dataclass(frozen=True)
class Link:
    """A GPU's PCIe link: generation and width (lanes) now, and the most that GPU and slot do together."""

    generation: int
    width: int
    most_generation: int
    most_width: int


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: its number for NVML, which counts by PCI address.
        name, uuid: as nvidia-smi prints them.
        pci: normalised PCI address.
        capability: (major, minor).
        total, free: bytes of its memory.
        processes: who holds memory of it, the largest first.
        link: its PCIe link, or None where it has none or the driver does not tell.
        state: performance state, 0 (busy) to 15 (at rest), or None.
        mig: whether it is divided into instances (MIG).
    """

    index: int
    name: str
    uuid: str
    pci: str
    capability: tuple[int, int]
    total: int
    free: int
    processes: tuple[Process, ...] = ()
    link: Link | None = None
    state: int | None = None
    mig: bool = False


@dataclass(frozen=True)
class Driver:
    """The driver: its version, the newest CUDA that it runs as (major, minor), and its GPUs."""

    version: str
    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Absent:
    """There is no driver that answers: why, and what to do about it."""

    why: str
    remedy: str = (
        "install the NVIDIA driver, give the container the GPU (docker run --gpus), or serve a recipe for CPUs"
    )


def read(library: Any = None) -> Driver | Absent:
    """Ask the driver.

    Args:
        library: the module ``pynvml``, or what stands for it in a test.
    """
    if library is None:
        try:
            import pynvml as library
        except ImportError:
            return Absent("nvidia-ml-py is not installed", "install the distribution again; nvidia-ml-py belongs to it")
    try:
        with _open(library):
            version = library.nvmlSystemGetDriverVersion()
            number = library.nvmlSystemGetCudaDriverVersion_v2()
            handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
            gpus = tuple(_gpu(library, index, handle) for index, handle in enumerate(handles))
    except library.NVMLError as error:
        return Absent(str(error))
    return Driver(_text(version), (number // 1000, number % 1000 // 10), gpus)


@contextmanager
def _open(library: Any) -> Iterator[None]:
    library.nvmlInit()
    try:
        yield
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, index: int, handle: Any) -> Gpu:
    def offered(question: Callable[..., Any], *words: Any) -> Any:
        try:
            return question(handle, *words)
        except library.NVMLError:
            return None

    memory = library.nvmlDeviceGetMemoryInfo(handle)
    major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    mode = offered(library.nvmlDeviceGetMigMode)
    facts = [
        offered(library.nvmlDeviceGetCurrPcieLinkGeneration),
        offered(library.nvmlDeviceGetCurrPcieLinkWidth),
        offered(library.nvmlDeviceGetMaxPcieLinkGeneration),
        offered(library.nvmlDeviceGetMaxPcieLinkWidth),
    ]
    # By version: the names without one raise an error that is no NVMLError where an older driver lacks the newest.
    running = (library.nvmlDeviceGetComputeRunningProcesses_v3, library.nvmlDeviceGetGraphicsRunningProcesses_v3)
    holders = {
        entry.pid: Process(entry.pid, entry.usedGpuMemory) for question in running for entry in offered(question) or ()
    }
    return Gpu(
        index=index,
        name=_text(library.nvmlDeviceGetName(handle)),
        uuid=_text(library.nvmlDeviceGetUUID(handle)),
        pci=normalize_pci(_text(library.nvmlDeviceGetPciInfo(handle).busId)),
        capability=(major, minor),
        total=memory.total,
        free=memory.free,
        processes=tuple(sorted(holders.values(), key=lambda held: -(held.nbytes or 0))),
        link=None if None in facts or 0 in facts else Link(*facts),
        state=offered(library.nvmlDeviceGetPerformanceState),
        mig=bool(mode and mode[0]),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
