"""Every plain kernel equals the interpreted Triton kernel that it replaces, on random inputs of many shapes.

A case builds its arguments from a seed, so that building it twice gives two independent, equal memories: one for the
original, one for the replacement. All memory that a kernel may write is then compared, bitwise unless a row of
``TOLERANCE`` says otherwise.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from triton.runtime.errors import InterpreterError

from moet_w2.cpu import kernels
from moet_w2.cpu.kernels.launch import PlainKernel, Replacement, attach_one
from moet_w2.errors import UnsupportedError

PAD = -1
SEEDS = range(6)
TOLERANCE = {"_topk_log_softmax_kernel": 1e-5}
"""Absolute, for float32 log-probabilities: the kernel sums in blocks of 1024, torch sums a row at once."""


@dataclass
class Case:
    """One launch: grid, arguments by name, and the memories that the kernel may have changed."""

    grid: tuple[int, ...]
    arguments: dict[str, Any]
    written: list[torch.Tensor] = field(default_factory=list)


class Batch:
    """A random batch of requests in a model runner's terms: slots, query lengths, computed tokens."""

    def __init__(self, rng: random.Random, decode: bool | None = None) -> None:
        self.rng = rng
        self.slots = 8
        self.size = rng.randint(1, 4)
        self.request = rng.sample(range(self.slots), self.size)
        lengths = [
            1 if decode or (decode is None and rng.random() < 0.5) else rng.randint(1, 300) for _ in self.request
        ]
        self.bounds = [0]
        for length in lengths:
            self.bounds.append(self.bounds[-1] + length)
        self.tokens = self.bounds[-1]
        self.computed = [rng.randint(0, 700) for _ in range(self.slots)]
        self.lengths = [self.computed[r] + n for r, n in zip(self.request, lengths, strict=True)]

    def ints(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    def randoms(self, *shape: int, high: int = 1000, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.rng.randint(0, 2**31))
        return torch.randint(0, high, shape, generator=generator, dtype=dtype)

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.rng.randint(0, 2**31))
        return torch.randn(shape, generator=generator).to(dtype)


def addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


def zero_kv_blocks(b: Batch) -> Case:
    pages = [24, 100, 64]
    strides = [32, 100, 200]
    memory = [b.randoms(10 * stride, high=2**31 - 1) for stride in strides]
    blocks = b.rng.sample(range(10), 3)
    return Case(
        (len(blocks), 3, 4),
        dict(
            seg_addrs_ptr=torch.tensor([m.data_ptr() for m in memory], dtype=torch.int64),
            seg_block_strides_ptr=b.ints(strides, torch.int64),
            seg_page_sizes_ptr=b.ints(pages, torch.int64),
            block_ids_ptr=b.ints(blocks, torch.int64),
            BLOCK_SIZE=32,
        ),
        memory,
    )


def apply_write(b: Batch) -> Case:
    groups = b.rng.random() < 0.5
    widths = [40, 64, 1100]
    tables = [torch.zeros(b.slots, width, dtype=torch.int32) for width in widths]
    writes, ends, total = b.rng.randint(1, 4), [], 0
    group, starts = [], []
    for _ in range(writes):
        group.append(b.rng.randrange(3) if groups else 2)
        starts.append(b.rng.randint(0, 10))
        total += b.rng.randint(1, widths[group[-1]] - 10)
        ends.append(total)
    return Case(
        (writes,),
        dict(
            output_ptr=addresses(tables) if groups else tables[2],
            output_stride=b.ints(widths, torch.int64) if groups else widths[2],
            write_indices_ptr=b.ints([b.rng.randrange(b.slots) for _ in range(writes)]),
            write_starts_ptr=b.ints(starts),
            write_contents_ptr=b.randoms(total),
            write_cu_lens_ptr=b.ints(ends),
            write_group_ids_ptr=b.ints(group) if groups else None,
            BLOCK_SIZE=1024,
            MULTI_GROUP=groups,
        ),
        tables,
    )


def gather(b: Batch) -> Case:
    widths = [8, 30]
    source = [b.randoms(b.slots, width) for width in widths]
    target = [b.randoms(b.slots, width) for width in widths]
    counts = torch.stack([b.randoms(b.slots, high=width + 1) for width in widths])
    return Case(
        (2, b.size + 2),
        dict(
            batch_idx_to_req_idx=b.ints(b.request),
            src_block_table_ptrs=addresses(source),
            dst_block_table_ptrs=addresses(target),
            block_table_strides=b.ints(widths, torch.int64),
            num_blocks_ptr=counts,
            num_blocks_stride=counts.stride(0),
            num_reqs=b.size,
            BLOCK_SIZE=1024,
        ),
        [*target, *source],
    )


def slot_mappings(b: Batch) -> Case:
    sizes = [256, 4, 64]
    tables = [b.randoms(b.slots, 1100 // size + 1) for size in sizes]
    slots = b.randoms(3, b.tokens + 40, dtype=torch.int64)
    positions = [p for r, n in zip(b.request, b.lengths, strict=True) for p in range(b.computed[r], n)]
    request = list(b.request)
    if b.rng.random() < 0.3:
        request[-1] = -1
    return Case(
        (3, b.size + 1),
        dict(
            max_num_tokens=slots.shape[1],
            idx_mapping=b.ints(request),
            query_start_loc=b.ints(b.bounds),
            pos=b.ints(positions, torch.int64),
            block_table_ptrs=addresses(tables),
            block_table_strides=b.ints([t.stride(0) for t in tables], torch.int64),
            block_sizes=b.ints(sizes),
            slot_mapping_enabled=torch.tensor([True, True, b.rng.random() < 0.5]),
            dcp_sharded=torch.tensor([True] * 3),
            slot_mappings_ptr=slots,
            slot_mappings_stride=slots.stride(0),
            cp_rank=0,
            CP_SIZE=1,
            CP_INTERLEAVE=1,
            PAD_ID=PAD,
            TRITON_BLOCK_SIZE=1024,
        ),
        [slots, *tables],
    )


def prefill_inputs(b: Batch) -> Case:
    history = b.randoms(b.slots, 1200)
    input_ids, ahead = b.randoms(b.tokens + 5), b.randoms(2, b.slots)
    return Case(
        (b.size,),
        dict(
            input_ids_ptr=input_ids,
            next_prefill_tokens_ptr=ahead,
            next_prefill_tokens_stride=ahead.stride(0),
            num_lookahead=2,
            idx_mapping_ptr=b.ints(b.request),
            query_start_loc_ptr=b.ints(b.bounds),
            all_token_ids_ptr=history,
            all_token_ids_stride=history.stride(0),
            prefill_lens_ptr=b.ints([c + b.rng.randint(-5, 302) for c in b.computed]),
            num_computed_tokens_ptr=b.ints(b.computed),
            BLOCK_SIZE=1024,
            LOOKAHEAD_BLOCK=2,
        ),
        [input_ids, ahead, history],
    )


def positions(b: Batch) -> Case:
    pos, seq_lens = b.randoms(b.tokens + 5, dtype=torch.int64), b.randoms(b.slots)
    return Case(
        (b.size + 1,),
        dict(
            pos_ptr=pos,
            seq_lens_ptr=seq_lens,
            idx_mapping_ptr=b.ints(b.request),
            query_start_loc_ptr=b.ints(b.bounds),
            num_computed_tokens_ptr=b.ints(b.computed),
            max_num_reqs=b.slots,
            BLOCK_SIZE=1024,
        ),
        [pos, seq_lens],
    )


def combine_tokens(b: Batch) -> Case:
    new = b.rng.randint(0, 1)
    counts = [b.rng.randint(new, min(new + 2, b.bounds[i + 1] - b.bounds[i])) for i in range(b.size)]
    ends = [sum(counts[:i]) for i in range(b.size + 1)]
    input_ids, indices = b.randoms(b.tokens), b.randoms(max(ends[-1], 1), dtype=torch.int64)
    drafts = b.randoms(b.slots, 2, dtype=torch.int64)
    return Case(
        (b.size,),
        dict(
            input_ids_ptr=input_ids,
            idx_mapping_ptr=b.ints(b.request),
            last_sampled_tokens_ptr=b.randoms(b.slots, 1, dtype=torch.int64),
            query_start_loc_ptr=b.ints(b.bounds),
            seq_lens_ptr=b.ints(b.lengths),
            prefill_len_ptr=b.ints([c + b.rng.randint(-3, 3) for c in b.computed]),
            draft_tokens_ptr=drafts,
            draft_tokens_stride=drafts.stride(0),
            cu_num_logits_ptr=b.ints(ends),
            logits_indices_ptr=indices,
            BLOCK_SIZE=4,
            NUM_NEW_SAMPLED_TOKENS=new,
        ),
        [input_ids, indices],
    )


def sampled_and_rejected(b: Batch) -> Case:
    sampled, rejected = b.randoms(b.size, high=3), b.randoms(b.size)
    return Case(
        (b.size,),
        dict(
            num_sampled_ptr=sampled,
            num_rejected_ptr=rejected,
            seq_lens_ptr=b.ints(b.lengths),
            cu_num_logits_ptr=b.ints(list(range(0, 3 * (b.size + 1), 3))),
            idx_mapping_ptr=b.ints(b.request),
            prefill_len_ptr=b.ints([c + b.rng.randint(-3, 300) for c in b.computed]),
        ),
        [sampled, rejected],
    )


def post_update(b: Batch) -> Case:
    computed, last = b.ints(b.computed), b.randoms(b.slots, 1, dtype=torch.int64)
    bins = b.randoms(b.slots, 50) if b.rng.random() < 0.5 else None
    history, total = b.randoms(b.slots, 1200), b.ints(b.computed)
    sampled = b.randoms(b.size, 3, high=50, dtype=torch.int64)
    request = list(b.request)
    if b.rng.random() < 0.3:
        request[0] = -1
    return Case(
        (b.size,),
        dict(
            idx_mapping_ptr=b.ints(request),
            num_computed_tokens_ptr=computed,
            last_sampled_tokens_ptr=last,
            output_bin_counts_ptr=bins,
            output_bin_counts_stride=50 if bins is not None else 0,
            sampled_tokens_ptr=sampled,
            sampled_tokens_stride=sampled.stride(0),
            num_sampled_ptr=b.randoms(b.size, high=4),
            num_rejected_ptr=b.randoms(b.size, high=2),
            query_start_loc_ptr=b.ints(b.bounds) if b.rng.random() < 0.8 else None,
            all_token_ids_ptr=history,
            all_token_ids_stride=history.stride(0),
            total_len_ptr=total,
        ),
        [computed, last, history, total, *([bins] if bins is not None else [])],
    )


def token_requests(b: Batch) -> Case:
    extra = b.rng.randint(0, 30)
    out = b.randoms(b.tokens + extra)
    return Case(
        ((b.tokens + extra + 255) // 256,),
        dict(
            query_start_loc=b.ints(b.bounds),
            output=out,
            num_reqs=b.size,
            num_mapped=b.tokens,
            num_tokens=b.tokens + extra,
        ),
        [out],
    )


def compressed_slots(b: Batch) -> Case:
    ratio = b.rng.choice([4, 128])
    out, slots = torch.full((b.tokens,), PAD), b.randoms(b.tokens, dtype=torch.int64)
    slots[b.randoms(b.tokens, high=10) == 0] = PAD
    table = b.randoms(b.size, 16)
    return Case(
        (b.size,),
        dict(
            compressed_slot_mapping_ptr=out,
            slot_mapping_ptr=slots,
            query_start_loc_ptr=b.ints(b.bounds),
            seq_lens_ptr=b.ints(b.lengths),
            block_table_ptr=table,
            block_table_stride=table.stride(0),
            block_size=256 // ratio,
            dcp_world_size=1,
            cp_interleave=1,
            COMPRESS_RATIO=ratio,
            PAD_ID=PAD,
            TRITON_BLOCK_SIZE=1024,
        ),
        [out],
    )


def window_indices(b: Batch) -> Case:
    owners = [i for i in range(b.size) for _ in range(b.bounds[i], b.bounds[i + 1])]
    offset = b.rng.randint(0, b.tokens - 1)
    count = min(b.tokens - offset, 40)
    valid = b.randoms(b.tokens, high=8) > 0
    indices, lens, table = b.randoms(count, 1, 128), b.randoms(count), b.randoms(b.size, 20)
    return Case(
        (count,),
        dict(
            swa_indices_ptr=indices,
            swa_indices_stride=indices.stride(0),
            swa_lens_ptr=lens,
            window_size=128,
            index_width=128,
            left_visible_ptr=None,
            right_visible_ptr=None,
            query_start_loc_ptr=b.ints(b.bounds),
            seq_lens_ptr=b.ints(b.lengths),
            token_to_req_indices_ptr=b.ints(owners),
            is_valid_token_ptr=valid,
            block_table_ptr=table,
            block_table_stride=table.stride(0),
            block_size=64,
            replay_start_ptr=b.ints([b.rng.choice([0, 0, b.computed[r] // 2]) for r in b.request]),
            token_offset=offset,
            HAS_IMAGE=False,
            TRITON_BLOCK_SIZE=1024,
        ),
        [indices, lens],
    )


def prefill_gather_lens(b: Batch) -> Case:
    decodes = b.rng.randint(0, b.size - 1)
    out = b.randoms(b.slots)
    return Case(
        (1,),
        dict(
            prefill_gather_lens_ptr=out,
            seq_lens_ptr=b.ints(b.lengths),
            query_start_loc_ptr=b.ints(b.bounds),
            replay_start_ptr=b.ints([b.rng.choice([0, c]) for c in b.computed[: b.size]]),
            num_prefills=b.size - decodes,
            num_decodes=decodes,
            window_size=128,
            BLOCK_SIZE=4,
        ),
        [out],
    )


def prefill_chunks(b: Batch) -> Case:
    keys = [0]
    for length in b.lengths:
        keys.append(keys[-1] + length // 4)
    start = b.rng.randint(0, b.tokens - 1)
    stop = b.rng.randint(start + 1, b.tokens)
    owner, first, last = b.randoms(max(keys[-1], 1)), b.randoms(b.tokens), b.randoms(b.tokens)
    return Case(
        (b.size,),
        dict(
            query_start_loc_ptr=b.ints(b.bounds),
            uncompressed_seq_lens_ptr=b.ints(b.lengths),
            cu_compressed_seq_lens_ptr=b.ints(keys),
            row_start_cu_compressed_seq_lens_ptr=b.ints(keys),
            token_to_seq_ptr=owner,
            cu_compressed_seq_len_ks_ptr=first,
            cu_compressed_seq_len_ke_ptr=last,
            query_slice_start=start,
            query_slice_stop=stop,
            DCP_RANK=0,
            DCP_WORLD=1,
            DCP_INTERLEAVE=1,
            BLOCK_SIZE=1024,
            COMPRESS_RATIO=4,
        ),
        [owner, first, last],
    )


def gumbel(b: Batch) -> Case:
    vocab = b.rng.choice([500, 1024, 3000])
    blocks = (vocab + 1023) // 1024
    argmax = torch.zeros(b.size, blocks, dtype=torch.int64)
    best = torch.zeros(b.size, blocks)
    logits = b.floats(b.size, vocab, dtype=b.rng.choice([torch.float32, torch.bfloat16]))
    request = list(b.request)
    if b.rng.random() < 0.2:
        request[-1] = -1
    return Case(
        (b.size, blocks),
        dict(
            local_argmax_ptr=argmax,
            local_argmax_stride=argmax.stride(0),
            local_max_ptr=best,
            local_max_stride=best.stride(0),
            logits_cache_ptr=None,
            logits_cache_stride_0=0,
            logits_cache_stride_1=0,
            logits_cache_col_ptr=None,
            logits_cache_source_ptr=None,
            logits_cache_source_stride=0,
            logits_ptr=logits,
            logits_stride=logits.stride(0),
            expanded_idx_mapping_ptr=b.ints(request),
            seeds_ptr=torch.tensor([b.rng.randint(-(2**63), 2**63 - 1) for _ in range(b.slots)]),
            pos_ptr=b.randoms(b.size, dtype=torch.int64),
            temp_ptr=torch.tensor([b.rng.choice([0.0, 0.0, 0.7, 1.0, 1.3]) for _ in range(b.slots)]),
            vocab_size=vocab,
            BLOCK_SIZE=1024,
            IS_DRAFTING=b.rng.random() < 0.3,
            APPLY_TEMPERATURE=b.rng.random() < 0.5,
            USE_FP64=False,
            PER_TOKEN_COL=False,
        ),
        [argmax, best],
    )


def temperature(b: Batch) -> Case:
    logits = b.floats(b.size, 900)
    return Case(
        (b.size, 1),
        dict(
            logits_ptr=logits,
            logits_stride=logits.stride(0),
            expanded_idx_mapping_ptr=b.ints(b.request),
            temperature_ptr=torch.tensor([b.rng.choice([0.0, 0.7, 1.0, 1.3]) for _ in range(b.slots)]),
            vocab_size=900,
            BLOCK_SIZE=8192,
        ),
        [logits],
    )


def topk_log_softmax(b: Batch) -> Case:
    logits, ids = 4 * b.floats(b.size, 3000), b.randoms(b.size, 5, high=3000, dtype=torch.int64)
    out = torch.zeros(b.size, 5)
    return Case(
        (b.size,),
        dict(
            output_ptr=out,
            logits_ptr=logits,
            logits_stride=logits.stride(0),
            topk_ids_ptr=ids,
            topk_ids_stride=ids.stride(0),
            topk=5,
            vocab_size=3000,
            BLOCK_SIZE=1024,
            TOPK_BLOCK_SIZE=8,
        ),
        [out],
    )


def ranks(b: Batch) -> Case:
    logits = b.floats(b.size, 3000, dtype=torch.bfloat16).float()
    out = b.randoms(b.size, dtype=torch.int64)
    return Case(
        (b.size,),
        dict(
            output_ptr=out,
            logits_ptr=logits,
            logits_stride=logits.stride(0),
            token_ids_ptr=b.randoms(b.size, high=3000, dtype=torch.int64),
            vocab_size=3000,
            BLOCK_SIZE=8192,
        ),
        [out],
    )


def grammar_mask(b: Batch) -> Case:
    """Rows of two positions a request; one request's second row lies beyond its logits and is not to be used."""
    vocab, stride = b.rng.choice([64, 100, 9000]), 2
    counts = [b.rng.randint(1, 2) for _ in range(b.size)]
    ends = [sum(counts[:i]) for i in range(b.size + 1)]
    rows = [request * stride + position for request in range(b.size) for position in range(stride)]
    logits = b.floats(ends[-1], vocab)
    bits = b.randoms(len(rows), (vocab + 31) // 32, high=2**31 - 1)
    bits[0] *= -1
    return Case(
        (len(rows), (vocab + 8191) // 8192),
        dict(
            logits_ptr=logits,
            logits_stride=logits.stride(0),
            logits_indices_ptr=b.ints(rows),
            cu_num_logits_ptr=b.ints(ends),
            bitmask_ptr=bits,
            bitmask_stride=bits.stride(0),
            vocab_size=vocab,
            MASK_STRIDE=stride,
            BLOCK_SIZE=8192,
        ),
        [logits],
    )


def grammar_by_hand(case: Case) -> None:
    """What the grammar kernel is to do, bit by bit: the interpreter cannot say."""
    a = case.arguments
    ends, vocab = a["cu_num_logits_ptr"].tolist(), a["vocab_size"]
    for row, mapped in enumerate(a["logits_indices_ptr"].tolist()):
        request, position = divmod(mapped, a["MASK_STRIDE"])
        if ends[request] + position >= ends[request + 1]:
            continue
        for token in range(vocab):
            if not (int(a["bitmask_ptr"][row, token // 32]) >> (token % 32)) & 1:
                a["logits_ptr"][ends[request] + position, token] = float("-inf")


BY_HAND: dict[str, Callable[[Case], None]] = {"_apply_grammar_bitmask_kernel": grammar_by_hand}
"""References for kernels that the interpreter cannot run; that it cannot is asserted, so this list stays honest."""

CASES: dict[str, Callable[[Batch], Case]] = {
    "_zero_kv_blocks_kernel": zero_kv_blocks,
    "_apply_write_kernel": apply_write,
    "_gather_block_tables_kernel": gather,
    "_compute_slot_mappings_kernel": slot_mappings,
    "_prepare_prefill_inputs_kernel": prefill_inputs,
    "_prepare_pos_seq_lens_kernel": positions,
    "_combine_sampled_and_draft_tokens_kernel": combine_tokens,
    "_get_num_sampled_and_rejected_kernel": sampled_and_rejected,
    "_post_update_kernel": post_update,
    "_token_request_mapping_kernel": token_requests,
    "CompressedSlotMappingKernel.kernel": compressed_slots,
    "_compute_swa_indices_and_lens_kernel": window_indices,
    "ComputeSWAIndicesAndLensKernel.kernel": window_indices,
    "ComputePrefillMetadataKernel.kernel": prefill_gather_lens,
    "BuildPrefillChunkMetadataKernel.kernel": prefill_chunks,
    "_gumbel_sample_kernel": gumbel,
    "_temperature_kernel": temperature,
    "_topk_log_softmax_kernel": topk_log_softmax,
    "_ranks_kernel": ranks,
    "_apply_grammar_bitmask_kernel": grammar_mask,
}


def original_of(row: Replacement) -> Any:
    target: Any = importlib.import_module(row.module)
    for part in row.attribute.split("."):
        target = getattr(target, part)
    return target.original if isinstance(target, PlainKernel) else target


def first_difference(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> str | None:
    wrong = (a != b) if tolerance == 0 else ((a - b).abs() > tolerance)
    if not wrong.any():
        return None
    where = tuple(int(i) for i in wrong.nonzero()[0])
    return f"at {where}: kernel {a[where].item()}, plain {b[where].item()} ({int(wrong.sum())} of {a.numel()} differ)"


def test_every_replacement_has_a_case() -> None:
    assert {row.attribute for row in kernels.TABLE} == set(CASES)


@pytest.mark.parametrize("row", kernels.TABLE, ids=lambda row: row.attribute)
def test_plain_equals_interpreted(row: Replacement) -> None:
    build, original, changed = CASES[row.attribute], original_of(row), False
    for seed in SEEDS:
        reference, plain = build(Batch(random.Random(seed))), build(Batch(random.Random(seed)))
        before = [memory.clone() for memory in plain.written]
        if row.attribute in BY_HAND:
            with pytest.raises(InterpreterError):
                original[reference.grid](**reference.arguments)
            reference = build(Batch(random.Random(seed)))
            BY_HAND[row.attribute](reference)
        else:
            original[reference.grid](**reference.arguments)
        assert row.function(plain.grid, **plain.arguments) is not NotImplemented
        for index, (want, got) in enumerate(zip(reference.written, plain.written, strict=True)):
            difference = first_difference(want, got, TOLERANCE.get(row.attribute, 0))
            assert difference is None, f"seed {seed}: memory {index} {difference}"
        changed |= any(not torch.equal(old, new) for old, new in zip(before, plain.written, strict=True))
    assert changed, "no case made the kernel write: the comparison proves nothing"


@pytest.mark.parametrize(
    ("attribute", "change"),
    [
        ("_compute_slot_mappings_kernel", {"CP_SIZE": 2}),
        ("_gumbel_sample_kernel", {"USE_FP64": True}),
        ("BuildPrefillChunkMetadataKernel.kernel", {"DCP_WORLD": 2}),
        ("_compute_swa_indices_and_lens_kernel", {"HAS_IMAGE": True}),
    ],
)
def test_uncovered_variants_fall_back(attribute: str, change: dict[str, Any]) -> None:
    row = next(row for row in kernels.TABLE if row.attribute == attribute)
    launches: list[Any] = []

    class Original:
        arg_names = original_of(row).arg_names
        fn = original_of(row).fn

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **kwargs: launches.append((grid, kwargs))

    case = CASES[attribute](Batch(random.Random(0)))
    PlainKernel(Original(), row)[case.grid](**(case.arguments | change))
    assert [grid for grid, _ in launches] == [case.grid]


def test_changed_arguments_are_refused() -> None:
    def wrong(grid: Any, query_start_loc: Any, output: Any, num_reqs: Any, num_tokens: Any, renamed: Any) -> None:
        pass

    row = Replacement("vllm.v1.attention.ops.metadata", "_token_request_mapping_kernel", wrong, "test")
    if isinstance(getattr(importlib.import_module(row.module), row.attribute), PlainKernel):
        pytest.fail("kernels must not be attached in the test process")
    with pytest.raises(UnsupportedError, match="_token_request_mapping_kernel changed its arguments"):
        attach_one(row)


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("vllm.v1.attention.ops.metadata", "_gone_kernel"),
        ("vllm.v1.attention.ops.gone", "_token_request_mapping_kernel"),
    ],
)
def test_missing_kernels_are_refused(module: str, attribute: str) -> None:
    with pytest.raises(UnsupportedError, match="is not in this vLLM"):
        attach_one(Replacement(module, attribute, lambda grid: None, "test"))
