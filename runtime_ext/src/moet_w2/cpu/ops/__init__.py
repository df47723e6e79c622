"""Plain torch versions of the compiled operations that vLLM's AVX2 and AVX512 builds of its C extension lack.

vLLM calls these as ``torch.ops._C.<name>``. Where the compiled one exists it stays; where it does not, the plain one
is registered under the same name, with the schema of the compiled one, so that vLLM's model code runs unchanged.
Everything is computed in float32 and rounded where the compiled operation rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import UnsupportedError
from .. import capability
from . import attention, compressor, experts, hyper, indexer, packing, routing


@dataclass(frozen=True)
class PlainOp:
    """One operation: its schema without the namespace, and the function that computes it."""

    schema: str
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.schema.partition("(")[0]


TABLE: tuple[PlainOp, ...] = (
    PlainOp("convert_weight_packed(Tensor weight) -> Tensor", packing.convert_weight_packed),
    PlainOp("convert_scale_packed(Tensor scale) -> Tensor", packing.convert_scale_packed),
    PlainOp("bmm_cpu(Tensor(a!) out, Tensor mat1, Tensor mat2, bool is_vnni, Tensor? scale) -> ()", packing.bmm),
    PlainOp(
        "biased_topk_cpu(Tensor hidden_states, Tensor gating_output, Tensor correction_bias, int topk, "
        "bool renormalize, str scoring_func, int num_fused_shared_experts, float? routed_scaling_factor, "
        "bool apply_routed_scaling_factor_on_output) -> (Tensor, Tensor)",
        routing.biased_topk,
    ),
    PlainOp(
        "hash_topk_cpu(Tensor gating_output, Tensor tid2eid, int topk, str scoring_func, "
        "int num_fused_shared_experts, int num_experts, float routed_scaling_factor) -> (Tensor, Tensor)",
        routing.hash_topk,
    ),
    PlainOp(
        "fused_experts_cpu(Tensor(a!) out, Tensor hidden_states, Tensor w1, Tensor w2, Tensor topk_weights, "
        "Tensor topk_ids, int moe_comp_method, Tensor? w1_scale, Tensor? w2_scale, Tensor? w1_zero, "
        "Tensor? w2_zero, Tensor? a1_scale, int[]? block_size, Tensor? w1_bias, Tensor? w2_bias, float? alpha, "
        "float? limit, bool is_vnni) -> ()",
        experts.fused_experts,
    ),
    PlainOp(
        "hc_pre_fused_cpu(Tensor x, Tensor hc_fn, Tensor hc_scale, Tensor hc_base, int hc_mult, "
        "int sinkhorn_iters, float rms_eps, float hc_eps) -> (Tensor, Tensor, Tensor)",
        hyper.pre,
    ),
    PlainOp("hc_post_fused_cpu(Tensor x, Tensor residual, Tensor post, Tensor comb) -> Tensor", hyper.post),
    PlainOp(
        "hc_head_fused_cpu(Tensor x, Tensor hc_fn, Tensor hc_scale, Tensor hc_base, float hc_eps, "
        "float norm_eps) -> Tensor",
        hyper.head,
    ),
    PlainOp(
        "fused_qnorm_rope_kv_insert_cpu(Tensor q, Tensor kv, Tensor positions, Tensor(a!) swa_kv_cache_2d, "
        "Tensor slot_mapping, Tensor cos_sin_cache, int q_head_padded, float eps, int cache_block_size) -> Tensor",
        attention.qnorm_rope_kv_insert,
    ),
    PlainOp(
        "flash_mla_with_kvcache_cpu(Tensor(a!) out, Tensor q, Tensor window_cache_2d, Tensor window_slots, "
        "int window_block_size, Tensor compressed_cache_2d, Tensor compressed_slots, int compressed_block_size, "
        "Tensor attn_sink, float scale) -> ()",
        attention.sparse_attention,
    ),
    PlainOp(
        "inverse_gptj_rope_o_proj_cpu(Tensor o, Tensor positions, Tensor cos_sin_cache, int rope_dim) -> Tensor",
        attention.inverse_rope,
    ),
    PlainOp(
        "save_partial_states_cpu(Tensor kv, Tensor score, Tensor ape, Tensor positions, Tensor(a!) state_cache, "
        "Tensor slot_mapping) -> ()",
        compressor.save_states,
    ),
    PlainOp(
        "compress_norm_rope_store_cpu(Tensor state_cache, Tensor gather_slots, Tensor positions, "
        "Tensor kv_slot_mapping, Tensor rms_norm_weight, float rms_norm_eps, Tensor cos_sin_cache, "
        "Tensor(a!) kv_cache_2d, int kv_cache_block_size, int compress_ratio) -> ()",
        compressor.compress_store,
    ),
    PlainOp(
        "compress_norm_rope_store_indexer_cpu(Tensor state_cache, Tensor gather_slots, Tensor positions, "
        "Tensor kv_slot_mapping, Tensor rms_norm_weight, float rms_norm_eps, Tensor cos_sin_cache, "
        "Tensor(a!) kv_cache_2d, int kv_cache_block_size, int compress_ratio) -> ()",
        compressor.compress_store_indexer,
    ),
    PlainOp(
        "fused_indexer_q_rope_quant_cpu(Tensor positions, Tensor index_q, Tensor index_q_cos_sin_cache, "
        "Tensor(a!) index_q_fp8, Tensor index_weights, float index_weights_softmax_scale, "
        "float index_weights_head_scale, Tensor(b!) index_weights_out) -> ()",
        indexer.query_rope_quant,
    ),
    PlainOp(
        "fp8_paged_mqa_logits_cpu(Tensor q_fp8, Tensor kvcache_fp8, Tensor weight, Tensor seq_lens, "
        "Tensor page_table, int block_size, int max_seq_len) -> Tensor",
        indexer.paged_logits,
    ),
    PlainOp(
        "topk_transform_512_cpu(Tensor scores, Tensor seq_lens, Tensor page_tables, Tensor(a!) out_page_indices, "
        "int page_size, Tensor(b!)? out_raw_indices) -> ()",
        indexer.topk_512,
    ),
)
"""Every operation of the DeepSeek-V4 path that only the AVX512-BF16 build of vLLM's extension compiles."""

_library: torch.library.Library | None = None


def attach() -> tuple[str, ...]:
    """Register the plain version of every operation that does not exist, and return their names. Idempotent.

    Raises:
        UnsupportedError: only part of the compiled operations exist: this vLLM is not the pinned one.
    """
    global _library
    missing = tuple(op for op in TABLE if not capability.has_op(op.name))
    if not missing:
        return ()
    if len(missing) != len(TABLE):
        raise UnsupportedError(
            f"vLLM's C extension has some DeepSeek-V4 operations but not {', '.join(op.name for op in missing)}; "
            "this vLLM is not the pinned one"
        )
    _library = torch.library.Library("_C", "FRAGMENT")
    for op in missing:
        _library.define(op.schema)
        _library.impl(op.name, op.function, "CPU")
    return tuple(op.name for op in missing)
