"""Plain replacements for the Triton kernels that run for every token, and the one table that installs them.

Interpreted, these kernels cost more than the tiny model itself. Measured on a 2-core AVX512 x86 virtual machine with
a 4-layer model, block size 256: see the table in ``README.md`` beside this file.

Each replacement takes the launch grid and then exactly the kernel's own arguments, by name. That is checked when it is
attached: a kernel that is gone, or whose arguments changed, is an error and never a silent fall-through. A replacement
that meets a variant it does not cover returns ``NotImplemented`` and the interpreted original runs instead.
"""

from . import block_tables, grammar, inputs, metadata, sampling
from .launch import Replacement, attach_all

_GPU = "vllm.v1.worker.gpu"
_MLA = "vllm.v1.attention.backends.mla"

TABLE: tuple[Replacement, ...] = (
    Replacement("vllm.v1.worker.utils", "_zero_kv_blocks_kernel", block_tables.zero_kv_blocks, "new blocks"),
    Replacement(f"{_GPU}.buffer_utils", "_apply_write_kernel", block_tables.apply_write, "staged writes"),
    Replacement(f"{_GPU}.block_table", "_gather_block_tables_kernel", block_tables.gather, "every step"),
    Replacement(f"{_GPU}.block_table", "_compute_slot_mappings_kernel", block_tables.slot_mappings, "every step"),
    Replacement(f"{_GPU}.input_batch", "_prepare_prefill_inputs_kernel", inputs.prefill_inputs, "every prefill"),
    Replacement(f"{_GPU}.input_batch", "_prepare_pos_seq_lens_kernel", inputs.positions, "every step"),
    Replacement(f"{_GPU}.input_batch", "_combine_sampled_and_draft_tokens_kernel", inputs.combine_tokens, "every step"),
    Replacement(
        f"{_GPU}.input_batch", "_get_num_sampled_and_rejected_kernel", inputs.sampled_and_rejected, "every step"
    ),
    Replacement(f"{_GPU}.input_batch", "_post_update_kernel", inputs.post_update, "every step"),
    Replacement(
        "vllm.v1.attention.ops.metadata", "_token_request_mapping_kernel", metadata.token_requests, "every step"
    ),
    Replacement(
        f"{_MLA}.compressor_utils", "CompressedSlotMappingKernel.kernel", metadata.compressed_slots, "every step"
    ),
    Replacement(f"{_MLA}.sparse_swa", "_compute_swa_indices_and_lens_kernel", metadata.window_indices, "every step"),
    Replacement(f"{_MLA}.sparse_swa", "ComputeSWAIndicesAndLensKernel.kernel", metadata.window_indices, "every step"),
    Replacement(
        f"{_MLA}.sparse_swa", "ComputePrefillMetadataKernel.kernel", metadata.prefill_gather_lens, "every prefill"
    ),
    Replacement(f"{_MLA}.indexer", "BuildPrefillChunkMetadataKernel.kernel", metadata.prefill_chunks, "every prefill"),
    Replacement(f"{_GPU}.sample.gumbel", "_gumbel_sample_kernel", sampling.gumbel_argmax, "every step"),
    Replacement(f"{_GPU}.sample.gumbel", "_temperature_kernel", sampling.temperature, "sampled requests"),
    Replacement(f"{_GPU}.sample.logprob", "_topk_log_softmax_kernel", sampling.topk_log_softmax, "logprobs"),
    Replacement(f"{_GPU}.sample.logprob", "_ranks_kernel", sampling.ranks, "logprobs"),
    Replacement(
        f"{_GPU}.structured_outputs", "_apply_grammar_bitmask_kernel", grammar.grammar_mask, "structured output"
    ),
)
"""Every replacement: module, attribute, function, and when vLLM launches the kernel."""


def attach() -> None:
    """Install every replacement of :data:`TABLE`. Imports the modules it names, so call it in a worker only.

    Raises:
        UnsupportedError: a kernel is missing or its arguments are not those of the replacement.
    """
    attach_all(TABLE)
