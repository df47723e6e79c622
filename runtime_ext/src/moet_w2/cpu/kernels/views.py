"""NumPy views of the memory that a kernel argument points at. Nothing is copied."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def flat(pointer: torch.Tensor) -> NDArray[Any]:
    """The elements of a contiguous pointer argument as one axis; torch refuses one that is not contiguous."""
    return pointer.view(-1).numpy()


def rows(pointer: torch.Tensor, count: int, width: int, stride: int) -> NDArray[Any]:
    """``count`` rows of ``width`` elements whose starts lie ``stride`` elements apart."""
    return torch.as_strided(pointer, (count, width), (int(stride), 1), pointer.storage_offset()).numpy()


def int32_at(address: int, count: int) -> NDArray[np.int32]:
    """``count`` int32 at an absolute address (kernels receive tables of such addresses)."""
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_int32)), shape=(count,))


def trunc_div(a: NDArray[Any], b: int) -> NDArray[Any]:
    """Division that rounds towards zero, as Triton's ``//`` on signed integers does; ``b`` > 0."""
    return np.sign(a) * (np.abs(a) // b)
