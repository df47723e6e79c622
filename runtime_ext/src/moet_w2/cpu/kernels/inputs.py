"""Per-step inputs of the model runner: tokens, positions, sequence lengths, counters. Bitwise equal to the kernels."""

from __future__ import annotations

from typing import Any

import torch

from .launch import Grid
from .views import flat, rows


def prefill_inputs(
    grid: Grid,
    input_ids_ptr: torch.Tensor,
    next_prefill_tokens_ptr: torch.Tensor,
    next_prefill_tokens_stride: int,
    num_lookahead: int,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    prefill_lens_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    BLOCK_SIZE: int,
    LOOKAHEAD_BLOCK: int,
) -> Any:
    """Copy the prompt tokens of this step into the batch, and the few that follow into the look-ahead rows."""
    bounds = query_start_loc_ptr.tolist()
    requests = idx_mapping_ptr.tolist()
    tokens = rows(all_token_ids_ptr, max(requests) + 1, all_token_ids_ptr.shape[-1], all_token_ids_stride)
    input_ids, prefill_lens = flat(input_ids_ptr), flat(prefill_lens_ptr)
    computed_tokens = flat(num_computed_tokens_ptr)
    ahead = rows(next_prefill_tokens_ptr, num_lookahead, max(requests) + 1, next_prefill_tokens_stride)
    for batch in range(grid[0]):
        request = requests[batch]
        prefill, computed = int(prefill_lens[request]), int(computed_tokens[request])
        if computed >= prefill:
            continue
        start, end = bounds[batch], bounds[batch + 1]
        after = computed + end - start
        input_ids[start:end] = tokens[request, computed:after]
        for step in range(num_lookahead):
            ahead[step, request] = tokens[request, after + step] if after + step < prefill else 0


def positions(
    grid: Grid,
    pos_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int,
) -> Any:
    """Position of every token, sequence length of every request; lengths of unused rows become 0."""
    num_reqs = grid[0] - 1
    bounds = query_start_loc_ptr.tolist()
    requests = idx_mapping_ptr.tolist()
    pos, seq_lens, computed_tokens = flat(pos_ptr), flat(seq_lens_ptr), flat(num_computed_tokens_ptr)
    seq_lens[num_reqs:max_num_reqs] = 0
    for batch in range(num_reqs):
        start, end = bounds[batch], bounds[batch + 1]
        computed = int(computed_tokens[requests[batch]])
        seq_lens[batch] = computed + end - start
        if end - start == 1:
            pos[start] = computed
        else:
            pos[start:end] = range(computed, computed + end - start)


def combine_tokens(
    grid: Grid,
    input_ids_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
    draft_tokens_ptr: torch.Tensor,
    draft_tokens_stride: int,
    cu_num_logits_ptr: torch.Tensor,
    logits_indices_ptr: torch.Tensor,
    BLOCK_SIZE: int,
    NUM_NEW_SAMPLED_TOKENS: int,
) -> Any:
    """Where logits are read, and the sampled and drafted tokens that decoding requests feed back."""
    requests, bounds, logits_bounds = idx_mapping_ptr.tolist(), query_start_loc_ptr.tolist(), cu_num_logits_ptr.tolist()
    input_ids, indices = flat(input_ids_ptr), flat(logits_indices_ptr)
    last, prefill_lens, seq_lens = flat(last_sampled_tokens_ptr), flat(prefill_len_ptr), flat(seq_lens_ptr)
    for batch in range(grid[0]):
        request, end = requests[batch], bounds[batch + 1]
        first = logits_bounds[batch]
        count = logits_bounds[batch + 1] - first
        drafts = count - NUM_NEW_SAMPLED_TOKENS
        indices[first : first + count] = range(end - count, end)
        length, prefill = int(seq_lens[batch]), int(prefill_lens[request])
        if length <= prefill:
            continue
        if NUM_NEW_SAMPLED_TOKENS > 0 and length - count >= prefill:
            input_ids[end - count] = last[request]
        if drafts > 0:
            drafted = rows(draft_tokens_ptr, request + 1, drafts, draft_tokens_stride)
            input_ids[end - drafts : end] = drafted[request]


def sampled_and_rejected(
    grid: Grid,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    seq_lens_ptr: torch.Tensor,
    cu_num_logits_ptr: torch.Tensor,
    idx_mapping_ptr: torch.Tensor,
    prefill_len_ptr: torch.Tensor,
) -> Any:
    """Tokens sampled and drafts rejected by each request; both 0 while its prompt is still being read."""
    requests, logits_bounds, lengths = idx_mapping_ptr.tolist(), cu_num_logits_ptr.tolist(), seq_lens_ptr.tolist()
    sampled, rejected, prefill_lens = flat(num_sampled_ptr), flat(num_rejected_ptr), flat(prefill_len_ptr)
    for batch in range(grid[0]):
        if lengths[batch] < int(prefill_lens[requests[batch]]):
            sampled[batch] = rejected[batch] = 0
        else:
            rejected[batch] = logits_bounds[batch + 1] - logits_bounds[batch] - int(sampled[batch])


def post_update(
    grid: Grid,
    idx_mapping_ptr: torch.Tensor,
    num_computed_tokens_ptr: torch.Tensor,
    last_sampled_tokens_ptr: torch.Tensor,
    output_bin_counts_ptr: torch.Tensor | None,
    output_bin_counts_stride: int,
    sampled_tokens_ptr: torch.Tensor,
    sampled_tokens_stride: int,
    num_sampled_ptr: torch.Tensor,
    num_rejected_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor | None,
    all_token_ids_ptr: torch.Tensor,
    all_token_ids_stride: int,
    total_len_ptr: torch.Tensor,
) -> Any:
    """Record what was sampled: last token, history, output counts, lengths. Rows with index < 0 are skipped."""
    requests, counts, rejects = idx_mapping_ptr.tolist(), num_sampled_ptr.tolist(), num_rejected_ptr.tolist()
    bounds = [0] * (grid[0] + 1) if query_start_loc_ptr is None else query_start_loc_ptr.tolist()
    computed, last, total = flat(num_computed_tokens_ptr), flat(last_sampled_tokens_ptr), flat(total_len_ptr)
    height = max(requests, default=-1) + 1
    history = rows(all_token_ids_ptr, height, all_token_ids_ptr.shape[-1], all_token_ids_stride)
    sampled = rows(sampled_tokens_ptr, grid[0], sampled_tokens_ptr.shape[-1], sampled_tokens_stride)
    for batch in range(grid[0]):
        request, count = requests[batch], counts[batch]
        if request < 0:
            continue
        if count > 0:
            length = int(total[request])
            tokens = sampled[batch, :count]
            last[request] = tokens[-1]
            total[request] = length + count
            history[request, length : length + count] = tokens
            if output_bin_counts_ptr is not None:
                bins = rows(output_bin_counts_ptr, height, output_bin_counts_ptr.shape[-1], output_bin_counts_stride)
                for token in tokens:
                    bins[request, token] += 1
        computed[request] += bounds[batch + 1] - bounds[batch] - rejects[batch]
