"""Quantising and packing on the GPU: what :mod:`moet_w2.codebook`, :mod:`moet_w2.planes` and
:mod:`moet_w2.correction.codes` do, byte for byte, by the kernels of kernels/src/quantize.cu.

Nothing here waits for the device. Destinations may be mapped host memory, as a tensor over its device address.
"""

from __future__ import annotations

from ctypes import Structure, c_int32, c_int64, c_uint64

import torch

from .. import planes
from ..errors import UnsupportedError
from ..geometry import SCALE_BLOCK
from . import driver

_POINTER = c_uint64
_THREADS = 256
_COUNT_BYTES = 4 * 16 * _THREADS  # four loads a thread in flight
_COUNT_BLOCKS = 1024  # more would only be more to add up


class CountParams(Structure):
    """Of ``moet_count_zeros``; kernels/include/quantize_params.cuh says what each field is."""

    _fields_ = [("codes", _POINTER), ("counts", _POINTER), ("vectors", c_int64)]


class PackParams(Structure):
    """Of ``moet_pack_planes``, ``moet_pack_fp4`` and ``moet_pack_scales``."""

    _fields_ = [
        ("source", _POINTER),
        ("out", _POINTER),
        ("counts", _POINTER),
        ("row_bytes", c_int64),
        ("tiles_n", c_int32),
        ("tiles_k", c_int32),
        ("count_blocks", c_int32),
    ]


def pack_planes(codes: torch.Tensor, share: torch.Tensor, out: torch.Tensor) -> None:
    """Quantise a share of a tensor into planes; zeros by the rule over the whole tensor.

    Args:
        codes: uint8 ``[N, K / 2]`` on the device, contiguous: MXFP4 codes of the whole tensor.
        share: a view of ``codes``, some rows or some columns; an even number of both lies before it.
        out: uint8 ``[rows * columns / 4]`` of the share, contiguous, on the device or mapped.

    Raises:
        UnsupportedError: the share cannot be cut into tiles, or something is not aligned to 16 bytes.
        KernelError: CUDA refused.
    """
    blocks = count_blocks(codes.nbytes)
    counts = torch.empty(blocks, 2, dtype=torch.int32, device=codes.device)
    counting = CountParams(_aligned(codes, "codes"), counts.data_ptr(), codes.nbytes // 16)
    params = pack_params(share, out, 2)
    params.counts, params.count_blocks = counts.data_ptr(), blocks
    _launch("moet_count_zeros", blocks, codes, counting)
    _launch("moet_pack_planes", tile_blocks(params), codes, params, pdl=True)


def pack_fp4(codes: torch.Tensor, out: torch.Tensor) -> None:
    """Lay MXFP4 codes out as a correction row has them.

    Args:
        codes: uint8 ``[N, K / 2]`` on the device; rows may lie apart.
        out: uint8 ``[N * K / 2]``, contiguous, on the device or mapped.

    Raises:
        UnsupportedError, KernelError: as :func:`pack_planes`.
    """
    params = pack_params(codes, out, 2)
    _launch("moet_pack_fp4", tile_blocks(params), codes, params)


def pack_scales(scales: torch.Tensor, out: torch.Tensor) -> None:
    """Lay scales out beside their planes.

    Args:
        scales: uint8 ``[N, K / 32]`` on the device; rows may lie apart.
        out: uint8 ``[N * K / 32]``, contiguous, on the device or mapped.

    Raises:
        UnsupportedError, KernelError: as :func:`pack_planes`.
    """
    params = pack_params(scales, out, SCALE_BLOCK)
    _launch("moet_pack_scales", scale_blocks(params), scales, params)


def pack_params(share: torch.Tensor, out: torch.Tensor, per_byte: int) -> PackParams:
    """The parameters of a pack kernel, without counts.

    Args:
        share: uint8 ``[N, K / per_byte]``.
        out: where to.
        per_byte: columns in a byte of the source.
    """
    tiles_n, tiles_k = planes.tiles(share.shape[0], share.shape[1] * per_byte)
    # Scales are read four bytes at a time, and whole tiles begin at such.
    source = _aligned(share, "share") if per_byte == 2 else share.data_ptr()
    return PackParams(source, _aligned(out, "destination"), 0, share.stride(0), tiles_n, tiles_k, 0)


def count_blocks(nbytes: int) -> int:
    """Blocks that count the zeros of a tensor of so many bytes."""
    return min(-(-nbytes // _COUNT_BYTES), _COUNT_BLOCKS)


def tile_blocks(params: PackParams) -> int:
    """Blocks of the kernels that give each tile a warp."""
    return -(-params.tiles_n * params.tiles_k * 32 // _THREADS)


def scale_blocks(params: PackParams) -> int:
    """Blocks of the kernel that gives each 16 bytes of scales a thread, four a tile."""
    return -(-params.tiles_n * params.tiles_k * 4 // _THREADS)


def _launch(name: str, blocks: int, source: torch.Tensor, params: Structure, pdl: bool = False) -> None:
    driver.kernel("quantize", name, source.device.index).launch((blocks, 1, 1), _THREADS, 0, params, pdl=pdl)


def _aligned(tensor: torch.Tensor, what: str) -> int:
    address = tensor.data_ptr()
    if address % 16:
        raise UnsupportedError(f"the {what} of a weight lies at {address:#x}; it must begin at a multiple of 16 bytes")
    return address
