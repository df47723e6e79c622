"""The launcher against a driver of our own: what it passes on, and what its refusals become."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from moet_w2.errors import KernelError
from moet_w2.kernels import driver
from moet_w2.kernels.params import CombineParams


class Driver:
    """Records launches; answers with the statuses it was given."""

    def __init__(self) -> None:
        self.launches: list[SimpleNamespace] = []
        self.statuses: list[int] = []
        self.contexts = 0
        self.raised: list[int] = []
        self.fit = 2

    def cuLaunchKernelEx(self, config, function, arguments, extra) -> int:
        config = config._obj
        attribute = None
        if config.attribute_count:
            attribute = driver._LaunchAttribute.from_address(config.attributes)
        params = ctypes.cast(arguments._obj, ctypes.POINTER(CombineParams)).contents
        copied = CombineParams.from_buffer_copy(params)
        self.launches.append(SimpleNamespace(config=config, attribute=attribute, params=copied, extra=extra))
        return self.statuses.pop(0) if self.statuses else 0

    def cuFuncSetAttribute(self, function, which, value) -> int:
        self.raised.append(value)
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, fit, function, block, shared) -> int:
        fit._obj.value = self.fit
        return 0

    def cuDeviceGet(self, handle, device) -> int:
        return 0

    def cuDeviceGetAttribute(self, value, which, handle) -> int:
        value._obj.value = {16: 132, 97: 101376}[which]
        return 0

    def cuInit(self, flags) -> int:
        return 0

    def cuDevicePrimaryCtxRetain(self, context, handle) -> int:
        return 0

    def cuCtxSetCurrent(self, context) -> int:
        self.contexts += 1
        return 0

    def cuGetErrorName(self, status, name) -> int:
        name._obj.value = b"CUDA_ERROR_OF_A_TEST"
        return 0


@pytest.fixture
def cuda(monkeypatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(driver, "_libcuda", lambda: made)
    driver._attribute.cache_clear()
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU of a test")
    yield made
    driver._attribute.cache_clear()


def params() -> CombineParams:
    return CombineParams(1, 2, 3, 4, 5, 6, 7, 8)


def test_a_launch_passes_grid_stream_and_parameters(cuda) -> None:
    driver.Kernel("k", 0, 5).launch((3, 2, 1), 256, 1024, params())
    (seen,) = cuda.launches
    config = seen.config
    assert (config.grid_x, config.grid_y, config.grid_z) == (3, 2, 1)
    assert (config.block_x, config.block_y, config.block_z, config.shared) == (256, 1, 1, 1024)
    assert config.stream == 77 and seen.attribute is None
    assert bytes(seen.params) == bytes(params())


def test_programmatic_serialization_only_where_asked_and_where_there_is_such(cuda, monkeypatch) -> None:
    driver.Kernel("k", 0, 5).launch((1, 1, 1), 32, 0, params(), pdl=True)
    assert (cuda.launches[0].attribute.id, cuda.launches[0].attribute.value) == (6, 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    driver.Kernel("k", 0, 5).launch((1, 1, 1), 32, 0, params(), pdl=True)
    assert cuda.launches[1].attribute is None


def test_structs_of_the_driver_have_their_sizes() -> None:
    assert ctypes.sizeof(driver._LaunchAttribute) == 72
    assert ctypes.sizeof(driver._LaunchConfig) == 56


def test_a_thread_without_a_context_gets_one_and_tries_again(cuda) -> None:
    cuda.statuses = [201, 0]
    driver.Kernel("k", 0, 5).launch((1, 1, 1), 32, 0, params())
    assert (len(cuda.launches), cuda.contexts) == (2, 1)


def test_a_refused_launch_names_kernel_and_reason(cuda) -> None:
    cuda.statuses = [1]
    with pytest.raises(KernelError, match=r"launch of k, grid \[1, 1, 1\], block 32.*CUDA_ERROR_OF_A_TEST \(1\)"):
        driver.Kernel("k", 0, 5).launch((1, 1, 1), 32, 0, params())


def test_shared_memory_is_asked_for_once_and_within_the_device(cuda) -> None:
    kernel = driver.Kernel("k", 0, 5)
    kernel.allow_shared(48 << 10)
    kernel.allow_shared(60000)
    kernel.allow_shared(50000)
    assert cuda.raised == [60000]
    with pytest.raises(KernelError, match="k needs 101,377 bytes of shared memory a block, a GPU of a test allows"):
        kernel.allow_shared(101377)


def test_the_persistent_grid_is_what_fits(cuda) -> None:
    kernel = driver.Kernel("k", 0, 5)
    assert kernel.resident_blocks(256, 60000) == 2 * 132
    cuda.fit = 0
    with pytest.raises(KernelError, match="no block of 256 threads"):
        kernel.resident_blocks(256, 60000)


def test_a_machine_without_the_driver_says_so(monkeypatch) -> None:
    def missing(name: str):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(driver.ctypes, "CDLL", missing)
    driver._libcuda.cache_clear()
    with pytest.raises(KernelError, match="CUDA driver's library cannot be loaded .*; install the driver"):
        driver._libcuda()
