"""The card, its host and the link between them."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

GIB = 1 << 30
CUDA_SHARE = 94.97 / 96
"""Of a card's nominal GiB, what CUDA reports as total memory. Measured: an RTX PRO 6000 sold with 96 GB has 94.97 GiB
for CUDA, 97,887 MiB for nvidia-smi (antirez/ds4, issue 431). Others are taken to be alike; --cuda-gib is exact."""
HOST_RESERVE = 16 * GIB
"""Host memory that mapped layers leave to the system, vLLM's processes and the page cache. An assumption."""


@dataclass(frozen=True)
class Machine:
    """What a plan is made for.

    Attributes:
        cuda_bytes: total memory of the card as CUDA reports it.
        host_bytes: memory of the host, or of the node that the card hangs on.
        hbm_gbs: GB/s that a kernel reads device memory with; of a card sheet's figure where nothing is measured.
        link_gbs: GB/s that a kernel reads mapped host memory with; None where there is no link.
        sm: major compute capability; 12 takes FlashInfer's attention, others FlashMLA's and its larger workspace.
    """

    cuda_bytes: int
    host_bytes: int
    hbm_gbs: float
    link_gbs: float | None
    sm: int = 12

    def __post_init__(self) -> None:
        for name, value, option in (
            ("device memory", self.cuda_bytes, "--vram-gib"),
            ("host memory", self.host_bytes, "--host-gib"),
            ("device memory bandwidth", self.hbm_gbs, "--hbm-gbs"),
            ("link bandwidth", 1 if self.link_gbs is None else self.link_gbs, "--pcie-gbs"),
        ):
            if not value > 0:
                raise ConfigError(f"{name} is {value}; {option} must be greater than 0")


def card(
    vram_gib: float = 96, host_gib: float = 128, hbm_gbs: float = 1790, link_gbs: float | None = 51, sm: int = 12
) -> Machine:
    """A machine by a card's nominal size; the defaults are an RTX PRO 6000 on PCIe 5.0 x16."""
    return Machine(int(vram_gib * GIB * CUDA_SHARE), int(host_gib * GIB), hbm_gbs, link_gbs, sm)
