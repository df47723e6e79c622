"""Attention metadata: token owners, window indices, compressed slots, prefill chunks. Bitwise equal to the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .launch import Grid
from .views import flat, rows, trunc_div


def token_requests(
    grid: Grid, query_start_loc: torch.Tensor, output: torch.Tensor, num_reqs: int, num_mapped: int, num_tokens: int
) -> Any:
    """Request index of each token; 0 for tokens at or past ``num_mapped``."""
    ends = flat(query_start_loc)[1 : num_reqs + 1]
    out = flat(output)
    out[num_mapped:num_tokens] = 0
    mapped = np.searchsorted(ends, np.arange(min(num_mapped, num_tokens)), side="right")
    out[: mapped.size] = np.minimum(mapped, num_reqs - 1)


def compressed_slots(
    grid: Grid,
    compressed_slot_mapping_ptr: torch.Tensor,
    slot_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    block_size: int,
    dcp_world_size: int,
    cp_interleave: int,
    COMPRESS_RATIO: int,
    PAD_ID: int,
    TRITON_BLOCK_SIZE: int,
) -> Any:
    """Slot of the compressed state that each token completes, ``PAD_ID`` for the tokens that complete none."""
    out, slots, bounds = flat(compressed_slot_mapping_ptr), flat(slot_mapping_ptr), query_start_loc_ptr.tolist()
    lengths = seq_lens_ptr.tolist()
    table = rows(block_table_ptr, grid[0], block_table_ptr.shape[-1], block_table_stride)
    for batch in range(grid[0]):
        start, end = bounds[batch], bounds[batch + 1]
        if end <= start:
            continue
        first = lengths[batch] - (end - start)
        pos = np.arange(first, first + end - start, dtype=np.int64)
        done = ((pos + 1) % COMPRESS_RATIO == 0) & (slots[start:end] != PAD_ID)
        out[start:end] = PAD_ID
        if not done.any():
            continue
        pos = pos[done]
        local = trunc_div(pos, cp_interleave * dcp_world_size) * cp_interleave + np.fmod(pos, cp_interleave)
        state = trunc_div(local, COMPRESS_RATIO)
        blocks = table[batch, trunc_div(state, block_size)].astype(np.int64)
        out[start:end][done] = blocks * block_size + np.fmod(state, block_size)


def window_indices(
    grid: Grid,
    swa_indices_ptr: torch.Tensor,
    swa_indices_stride: int,
    swa_lens_ptr: torch.Tensor,
    window_size: int,
    index_width: int,
    left_visible_ptr: torch.Tensor | None,
    right_visible_ptr: torch.Tensor | None,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    token_to_req_indices_ptr: torch.Tensor,
    is_valid_token_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    block_size: int,
    replay_start_ptr: torch.Tensor,
    token_offset: int,
    HAS_IMAGE: bool,
    TRITON_BLOCK_SIZE: int,
) -> Any:
    """Cache slots of each token's causal window, -1 past its end, and the window's length. No image spans."""
    if HAS_IMAGE:
        return NotImplemented
    count = grid[0]
    token = np.arange(token_offset, token_offset + count)
    valid = flat(is_valid_token_ptr)[token].astype(bool)
    bounds, lengths = flat(query_start_loc_ptr), flat(seq_lens_ptr)
    request = np.where(valid, flat(token_to_req_indices_ptr)[token], 0)
    starts = bounds[request]
    pos = lengths[request] - (bounds[request + 1] - starts) + token - starts
    begin = np.maximum(np.maximum(pos - (window_size - 1), 0), flat(replay_start_ptr)[request])
    length = np.where(valid, pos + 1 - begin, 0)
    flat(swa_lens_ptr)[:count] = length
    offset = np.arange(index_width)
    inside = offset[None, :] < length[:, None]
    where = np.where(inside, begin[:, None] + offset[None, :], 0)
    table = rows(block_table_ptr, int(request.max(initial=0)) + 1, block_table_ptr.shape[-1], block_table_stride)
    slots = table[request[:, None], where // block_size] * block_size + where % block_size
    rows(swa_indices_ptr, count, index_width, swa_indices_stride)[:] = np.where(inside, slots, -1)


def prefill_gather_lens(
    grid: Grid,
    prefill_gather_lens_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    replay_start_ptr: torch.Tensor,
    num_prefills: int,
    num_decodes: int,
    window_size: int,
    BLOCK_SIZE: int,
) -> Any:
    """Tokens whose window KV each prefill gathers: its own and up to a window of its prefix."""
    part = slice(num_decodes, num_decodes + num_prefills)
    bounds = flat(query_start_loc_ptr)[num_decodes : num_decodes + num_prefills + 1]
    query = bounds[1:] - bounds[:-1]
    visible = np.maximum(flat(seq_lens_ptr)[part] - query - flat(replay_start_ptr)[part], 0)
    flat(prefill_gather_lens_ptr)[:num_prefills] = query + np.minimum(visible, window_size - 1)


def prefill_chunks(
    grid: Grid,
    query_start_loc_ptr: torch.Tensor,
    uncompressed_seq_lens_ptr: torch.Tensor,
    cu_compressed_seq_lens_ptr: torch.Tensor,
    row_start_cu_compressed_seq_lens_ptr: torch.Tensor,
    token_to_seq_ptr: torch.Tensor,
    cu_compressed_seq_len_ks_ptr: torch.Tensor,
    cu_compressed_seq_len_ke_ptr: torch.Tensor,
    query_slice_start: int,
    query_slice_stop: int,
    DCP_RANK: int,
    DCP_WORLD: int,
    DCP_INTERLEAVE: int,
    BLOCK_SIZE: int,
    COMPRESS_RATIO: int,
) -> Any:
    """Range of compressed keys visible to each query of an indexer chunk. No decode context parallelism."""
    if DCP_WORLD > 1:
        return NotImplemented
    bounds, lengths = query_start_loc_ptr.tolist(), uncompressed_seq_lens_ptr.tolist()
    keys, row_starts = cu_compressed_seq_lens_ptr.tolist(), row_start_cu_compressed_seq_lens_ptr.tolist()
    owner, first, last = flat(token_to_seq_ptr), flat(cu_compressed_seq_len_ks_ptr), flat(cu_compressed_seq_len_ke_ptr)
    for batch in range(grid[0]):
        start, end = bounds[batch], bounds[batch + 1]
        lo, hi = max(start, query_slice_start), min(end, query_slice_stop)
        if lo < hi:
            out = slice(lo - query_slice_start, hi - query_slice_start)
            context = lengths[batch] - (end - start) + 1 + np.arange(lo - start, hi - start)
            first[out] = row_starts[batch]
            last[out] = row_starts[batch] + trunc_div(context, COMPRESS_RATIO)
        owner[keys[batch] : keys[batch + 1]] = batch
