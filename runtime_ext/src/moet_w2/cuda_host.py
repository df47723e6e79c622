"""Host memory that a CUDA device reads in place: registration, pointers, and a torch view.

``cuda.bindings`` (NVIDIA's own Python binding) is imported on first use, so that a machine without CUDA can
import this package.
"""

from __future__ import annotations

from typing import Any

import torch

from .errors import HostMemoryError


class CudaRegistrar:
    """Registers host ranges as mapped and portable with the current CUDA device."""

    def register(self, address: int, nbytes: int) -> int:
        """Pin and map a range.

        Args:
            address: page-aligned host address.
            nbytes: whole pages.

        Returns:
            the device's pointer to the range.

        Raises:
            HostMemoryError: CUDA refused, or the device pointer is not the host's (no unified addressing).
        """
        cudart = _cudart()
        flags = cudart.cudaHostRegisterMapped | cudart.cudaHostRegisterPortable
        _check(cudart.cudaHostRegister(address, nbytes, flags), f"cudaHostRegister of {nbytes:,} bytes")
        try:
            device_address = int(_check(cudart.cudaHostGetDevicePointer(address, 0), "cudaHostGetDevicePointer"))
            attributes = _check(cudart.cudaPointerGetAttributes(device_address), "cudaPointerGetAttributes")
            if attributes.type != cudart.cudaMemoryType.cudaMemoryTypeHost or int(attributes.hostPointer) != address:
                raise HostMemoryError(
                    f"CUDA reports {attributes.type} at host {int(attributes.hostPointer):#x} for the range registered "
                    f"at {address:#x}; mapped layers need unified addressing"
                )
        except BaseException:
            cudart.cudaHostUnregister(address)
            raise
        return device_address

    def unregister(self, address: int) -> None:
        """Wait until the device is idle, then unmap and unpin.

        Raises:
            HostMemoryError: CUDA refused.
        """
        cudart = _cudart()
        _check(cudart.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
        _check(cudart.cudaHostUnregister(address), "cudaHostUnregister")


def device_view(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """uint8 ``[nbytes]`` on ``device`` over registered host memory, without a copy; it owns nothing.

    Args:
        address: the device's pointer.
        nbytes: length.
        device: the CUDA device.
    """
    return torch.as_tensor(_CudaArray(address, nbytes), device=device)


class _CudaArray:
    """The CUDA array interface, version 3 (numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def pci_address(device_index: int) -> str:
    """PCI address of a visible CUDA device, as CUDA writes it, "0000:31:00.0".

    Raises:
        HostMemoryError: CUDA refused.
    """
    name = _check(_cudart().cudaDeviceGetPCIBusId(32, device_index), "cudaDeviceGetPCIBusId")
    return name.split(b"\0")[0].decode().lower()


def _cudart() -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError:
        raise HostMemoryError(
            "mapped layers on a CUDA device need the cuda-bindings package; install the cuda variant of this "
            "distribution (scripts/build-native.sh cuda)"
        ) from None
    return runtime


def _check(result: tuple[Any, ...], what: str) -> Any:
    """Unpack ``(error, value...)`` as cuda.bindings returns it."""
    error, *values = result
    if error:
        raise HostMemoryError(f"{what} failed: {error.name}; see dmesg and nvidia-smi, then free host memory or pins")
    return values[0] if values else None
