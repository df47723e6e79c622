"""Block tables, slot mappings and the zeroing of new KV blocks. Bitwise equal to the kernels that they replace."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from .launch import Grid
from .views import flat, int32_at, rows


def zero_kv_blocks(
    grid: Grid,
    seg_addrs_ptr: torch.Tensor,
    seg_block_strides_ptr: torch.Tensor,
    seg_page_sizes_ptr: torch.Tensor,
    block_ids_ptr: torch.Tensor,
    BLOCK_SIZE: int,
) -> Any:
    """Clear each listed block in each segment; strides and page sizes count int32, addresses count bytes."""
    segments = list(
        zip(seg_addrs_ptr.tolist(), seg_block_strides_ptr.tolist(), seg_page_sizes_ptr.tolist(), strict=True)
    )
    covered = grid[2] * BLOCK_SIZE
    for block in block_ids_ptr.tolist()[: grid[0]]:
        for address, stride, page in segments[: grid[1]]:
            ctypes.memset(address + 4 * block * stride, 0, 4 * min(page, covered))


def apply_write(
    grid: Grid,
    output_ptr: torch.Tensor,
    output_stride: Any,
    write_indices_ptr: torch.Tensor,
    write_starts_ptr: torch.Tensor,
    write_contents_ptr: torch.Tensor,
    write_cu_lens_ptr: torch.Tensor,
    write_group_ids_ptr: torch.Tensor | None,
    BLOCK_SIZE: int,
    MULTI_GROUP: bool,
) -> Any:
    """Copy staged runs of values into rows of one tensor, or of several int32 tensors given by address."""
    contents = flat(write_contents_ptr)
    ends = write_cu_lens_ptr.tolist()
    indices, starts = write_indices_ptr.tolist(), write_starts_ptr.tolist()
    begin = 0
    for write in range(grid[0]):
        end = ends[write]
        if MULTI_GROUP:
            group = int(write_group_ids_ptr[write])  # type: ignore[index]
            offset = indices[write] * int(output_stride[group]) + starts[write]
            target = int32_at(int(output_ptr[group]) + 4 * offset, end - begin)
        else:
            offset = indices[write] * int(output_stride) + starts[write]
            target = rows(output_ptr, 1, offset + end - begin, 1)[0, offset:]
        target[:] = contents[begin:end]
        begin = end


def gather(
    grid: Grid,
    batch_idx_to_req_idx: torch.Tensor,
    src_block_table_ptrs: torch.Tensor,
    dst_block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    num_blocks_ptr: torch.Tensor,
    num_blocks_stride: int,
    num_reqs: int,
    BLOCK_SIZE: int,
) -> Any:
    """Copy the live part of each request's row into the batch's table; clear the rows of padding requests."""
    requests = batch_idx_to_req_idx.tolist()
    strides = block_table_strides.tolist()
    counts = rows(num_blocks_ptr, grid[0], max(requests[:num_reqs], default=-1) + 1, num_blocks_stride)
    for group in range(grid[0]):
        stride = strides[group]
        source, target = int(src_block_table_ptrs[group]), int(dst_block_table_ptrs[group])
        for batch in range(grid[1]):
            row = target + 4 * batch * stride
            if batch >= num_reqs:
                ctypes.memset(row, 0, 4 * stride)
                continue
            request = requests[batch]
            ctypes.memmove(row, source + 4 * request * stride, 4 * int(counts[group, request]))


def slot_mappings(
    grid: Grid,
    max_num_tokens: int,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    pos: torch.Tensor,
    block_table_ptrs: torch.Tensor,
    block_table_strides: torch.Tensor,
    block_sizes: torch.Tensor,
    slot_mapping_enabled: torch.Tensor,
    dcp_sharded: torch.Tensor,
    slot_mappings_ptr: torch.Tensor,
    slot_mappings_stride: int,
    cp_rank: int,
    CP_SIZE: int,
    CP_INTERLEAVE: int,
    PAD_ID: int,
    TRITON_BLOCK_SIZE: int,
) -> Any:
    """Cache slot of every token in every group; padding and dummy requests get ``PAD_ID``. No context parallelism."""
    if CP_SIZE != 1:
        return NotImplemented
    slots = rows(slot_mappings_ptr, grid[0], max_num_tokens, slot_mappings_stride)
    bounds = query_start_loc.tolist()
    requests = idx_mapping.tolist()
    positions = flat(pos)
    num_reqs = grid[1] - 1
    for group in range(grid[0]):
        slots[group, bounds[num_reqs] :] = PAD_ID
        stride, size = int(block_table_strides[group]), int(block_sizes[group])
        table, enabled = int(block_table_ptrs[group]), bool(slot_mapping_enabled[group])
        for batch in range(num_reqs):
            start, end = bounds[batch], bounds[batch + 1]
            request = requests[batch]
            if not enabled or request < 0:
                slots[group, start:end] = PAD_ID
                continue
            where = positions[start:end]
            blocks = int32_at(table + 4 * request * stride, stride)[where // size].astype(np.int64)
            slots[group, start:end] = blocks * size + where % size
