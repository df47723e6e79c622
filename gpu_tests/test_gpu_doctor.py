"""The doctor on a real GPU: NVML says of it what CUDA says, and memory that a process takes is seen and named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from moet_w2 import cuda_host
from moet_w2.doctor import Status, examine, nvml
from moet_w2.doctor.subject import visible

pytestmark = pytest.mark.gpu

GIB = 1 << 30


@pytest.fixture
def gpu() -> nvml.Gpu:
    """The GPU that CUDA calls 0."""
    pytest.importorskip("pynvml")
    driver = nvml.read()
    assert isinstance(driver, nvml.Driver), driver
    first = visible(driver.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))[0]
    if first.pci != cuda_host.pci_address(0):
        pytest.skip("CUDA counts the GPUs of this machine in another order; set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return first


def test_nvml_and_cuda_agree(gpu: nvml.Gpu) -> None:
    assert gpu.capability == torch.cuda.get_device_capability(0)
    assert gpu.name == torch.cuda.get_device_name(0)
    # NVML's total counts what the driver reserves, CUDA's does not: a few hundred MiB.
    total = torch.cuda.mem_get_info(0)[1]
    assert total <= gpu.total < total + 2 * GIB


def test_the_driver_runs_the_cuda_of_torch() -> None:
    pytest.importorskip("pynvml")
    major, minor = map(int, torch.version.cuda.split("."))
    assert nvml.read().cuda[0] >= major, (major, minor)


def test_memory_that_is_taken_is_seen(gpu: nvml.Gpu) -> None:
    torch.cuda.empty_cache()  # or the block is one that an earlier test gave back to PyTorch, not to the driver
    before = nvml.read().gpus[gpu.index]
    block = torch.empty(GIB, dtype=torch.uint8, device="cuda:0")
    after = nvml.read().gpus[gpu.index]
    assert before.free - after.free >= 0.9 * GIB
    del block


def test_a_link_that_is_told_is_a_link(gpu: nvml.Gpu) -> None:
    if gpu.link is None:
        pytest.skip("the driver tells nothing of a link")
    assert 1 <= gpu.link.generation <= gpu.link.most_generation and 1 <= gpu.link.width <= gpu.link.most_width


def test_the_machine_is_examined(gpu: nvml.Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    found = examine(None, None)
    with capsys.disabled():
        print("\n" + "\n".join(found.lines()))
    things = {check.thing: check for check in found.checks}
    assert things["driver"].status is things[f"GPU {gpu.index} capability"].status is Status.OK
    assert things["nvcc"].status in (Status.OK, Status.WARN) and things["compilation"].status is Status.OK
    node = Path(f"/sys/bus/pci/devices/{gpu.pci}/numa_node")
    if node.is_file() and int(node.read_text()) >= 0:
        assert things["NUMA node"].status is Status.OK
