"""Compile a probe kernel with nvcc and launch it on torch's current stream."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

PROBES = Path(__file__).resolve().parent / "probes"


class Probe:
    """One kernel of ``bench/probes``, compiled for the GPU at hand."""

    def __init__(self, name: str) -> None:
        torch.cuda.current_stream()  # creates the context the module is loaded into
        self._module = check(driver.cuModuleLoadData(_compile(name)))
        self._kernel = check(driver.cuModuleGetFunction(self._module, name.encode()))

    def launch(self, blocks: int, threads: int, *arguments: ctypes._SimpleCData) -> None:
        """Launch with C arguments, in order; capturable in a CUDA graph."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        stream = torch.cuda.current_stream().cuda_stream
        check(
            driver.cuLaunchKernel(
                self._kernel, blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(pointers), 0
            )
        )  # fmt: skip


def _compile(name: str) -> bytes:
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / f"{name}.cubin"
        command = ["nvcc", "-cubin", "-O3", f"-arch=sm_{major}{minor}", "-o", str(cubin), str(PROBES / f"{name}.cu")]
        subprocess.run(command, check=True)
        return cubin.read_bytes()


def check(result: tuple[Any, ...]) -> Any:
    """What a call of the driver's binding gave, without its status; RuntimeError where that is an error."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver call failed: {error.name}")
    return values[0] if values else None
