"""Loads cubins and launches their kernels through the CUDA driver, on torch's current stream.

ctypes on libcuda, and plain structs: a launch is one C call. Types and constants are those of cuda.h (CUDA Driver
API reference, "CUlaunchConfig", "CUlaunchAttribute", "CUfunction_attribute").
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p, pointer
from functools import cache
from typing import Any

import torch

from ..errors import KernelError

_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MAX_SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
DEFAULT_SHARED = 48 << 10
"""Dynamic shared memory, in bytes, that a kernel may have without asking for more."""
_PDL_CAPABILITY = (9, 0)

Grid = tuple[int, int, int]


class _LaunchAttribute(Structure):
    # The value is a union of 64 bytes; programmaticStreamSerializationAllowed is an int at its start.
    _fields_ = [("id", c_int), ("pad", c_int), ("value", c_int), ("rest", ctypes.c_char * 60)]


class _LaunchConfig(Structure):
    _fields_ = [
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    ]


_PDL = _LaunchAttribute(_PROGRAMMATIC_SERIALIZATION, 0, 1)
_PDL_ADDRESS = ctypes.addressof(_PDL)


class Kernel:
    """One kernel on one device.

    Attributes:
        name: its name in the cubin.
        device: index of the CUDA device.
    """

    def __init__(self, name: str, device: int, function: int) -> None:
        self.name, self.device = name, device
        self._function = c_void_p(function)
        self._cuda = _libcuda()
        self._stream = torch._C._cuda_getCurrentRawStream  # what Triton's and Inductor's launchers use
        self._pdl = torch.cuda.get_device_capability(device) >= _PDL_CAPABILITY
        self._shared = DEFAULT_SHARED

    def launch(self, grid: Grid, block: int, shared: int, params: Structure, pdl: bool = False) -> None:
        """Enqueue the kernel on torch's current stream of its device; also while that stream is being captured.

        Args:
            grid: blocks along x, y, z.
            block: threads of a block.
            shared: bytes of dynamic shared memory; above :data:`DEFAULT_SHARED` only after :meth:`allow_shared`.
            params: the kernel's one parameter. It is copied before this returns.
            pdl: let the kernel begin before its predecessor in the stream has ended (it must wait by itself with
                griddepcontrol). Without effect below sm_90.

        Raises:
            KernelError: CUDA refused; nothing was enqueued.
        """
        attributes, count = (_PDL_ADDRESS, 1) if pdl and self._pdl else (None, 0)
        config = _LaunchConfig(*grid, block, 1, 1, shared, self._stream(self.device), attributes, count)
        # A pointer object holds the address of what it points to: it is the array of one that the driver reads.
        arguments = byref(pointer(params))
        status = self._cuda.cuLaunchKernelEx(byref(config), self._function, arguments, None)
        if status == _INVALID_CONTEXT:  # this thread has not used the device yet
            _enter_context(self.device)
            status = self._cuda.cuLaunchKernelEx(byref(config), self._function, arguments, None)
        if status:
            what = f"launch of {self.name}, grid {list(grid)}, block {block}, {shared:,} bytes of shared memory"
            _check(status, what)

    def allow_shared(self, nbytes: int) -> None:
        """Raise the most dynamic shared memory that a launch may ask for.

        Raises:
            KernelError: the device has less.
        """
        if nbytes <= self._shared:
            return
        most = _attribute(_MAX_SHARED_OPTIN, self.device)
        if nbytes > most:
            raise KernelError(
                f"{self.name} needs {nbytes:,} bytes of shared memory a block, "
                f"{torch.cuda.get_device_name(self.device)} allows {most:,}; serve without --quantization moet_w2"
            )
        _check(
            self._cuda.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, nbytes),
            f"{nbytes:,} bytes of shared memory for {self.name}",
        )
        self._shared = nbytes

    def resident_blocks(self, block: int, shared: int) -> int:
        """Blocks of this kernel that the whole device runs at a time.

        Args:
            block: threads of a block.
            shared: bytes of dynamic shared memory of a block.

        Raises:
            KernelError: not even one fits.
        """
        self.allow_shared(shared)
        fit = c_int()
        _check(
            self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(fit), self._function, block, shared),
            f"occupancy of {self.name}",
        )
        if fit.value < 1:
            raise KernelError(
                f"{self.name}: no block of {block} threads with {shared:,} bytes of shared memory fits on "
                f"{torch.cuda.get_device_name(self.device)}; serve without --quantization moet_w2"
            )
        return fit.value * _attribute(_MULTIPROCESSORS, self.device)


@cache
def kernel(source: str, name: str, device: int) -> Kernel:
    """The kernel ``name`` of ``kernels/src/<source>.cu`` on a device; its module is loaded once.

    Not for the first time while a stream is being captured: loading is not allowed then.

    Raises:
        MoetError: there is no cubin for this device, it is not the one of the manifest, or it has no such kernel.
    """
    module, function = _module(source, device), c_void_p()
    _check(_libcuda().cuModuleGetFunction(byref(function), module, name.encode()), f"kernel {name} of {source}")
    return Kernel(name, device, function.value or 0)


@cache
def _module(source: str, device: int) -> c_void_p:
    from . import cubins

    image = cubins.find(source, torch.cuda.get_device_capability(device))
    _enter_context(device)
    module = c_void_p()
    _check(_libcuda().cuModuleLoadData(byref(module), image), f"loading the kernels of {source}")
    return module


def _enter_context(device: int) -> None:
    """Make the device's primary context, the one that torch uses, current in this thread."""
    handle, context = c_int(), c_void_p()
    cuda = _libcuda()
    _check(cuda.cuInit(0), "cuInit")
    _check(cuda.cuDeviceGet(byref(handle), device), f"CUDA device {device}")
    _check(cuda.cuDevicePrimaryCtxRetain(byref(context), handle), f"context of CUDA device {device}")
    _check(cuda.cuCtxSetCurrent(context), f"context of CUDA device {device}")


@cache
def _attribute(which: int, device: int) -> int:
    handle, value = c_int(), c_int()
    _check(_libcuda().cuDeviceGet(byref(handle), device), f"CUDA device {device}")
    _check(_libcuda().cuDeviceGetAttribute(byref(value), which, handle), f"attribute {which} of CUDA device {device}")
    return value.value


@cache
def _libcuda() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelError(f"the CUDA driver's library cannot be loaded ({error}); install the driver") from None
    signatures: dict[str, Sequence[Any]] = {
        "cuInit": (c_uint,),
        "cuDeviceGet": (POINTER(c_int), c_int),
        "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
        "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
        "cuCtxSetCurrent": (c_void_p,),
        "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
        "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
        "cuFuncSetAttribute": (c_void_p, c_int, c_int),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
        "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
        "cuGetErrorName": (c_int, POINTER(c_char_p)),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = list(arguments), c_int
    return library


def _check(status: int, what: str) -> None:
    """Turn a CUresult into an error."""
    if not status:
        return
    name = c_char_p()
    _libcuda().cuGetErrorName(status, byref(name))
    reason = (name.value or b"unknown").decode()
    raise KernelError(
        f"{what}: the CUDA driver answers {reason} ({status}); the driver may be too old for this build, or an "
        "earlier kernel has failed (CUDA_LAUNCH_BLOCKING=1 shows which)"
    )
