"""Names of the official checkpoint and of transformers' modules, and how each tensor is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from demo.make.geometry import COMPRESS_RATIOS, EXPERTS, HASH_LAYERS, LAYERS


@dataclass(frozen=True)
class Entry:
    """One weight: its official name, transformers' name, and its storage.

    storage: "fp4", "fp8" (name.weight plus name.scale), "bf16", "f32", "i32".
    rows: for an expert, which expert and which half ("w1", "w2", "w3") of transformers' stacked tensor.
    """

    official: str
    ours: str
    storage: str
    expert: int | None = None
    part: str | None = None


_TOP = (
    ("embed.weight", "model.embed_tokens.weight", "bf16"),
    ("head.weight", "lm_head.weight", "bf16"),
    ("norm.weight", "model.norm.weight", "bf16"),
    ("hc_head_fn", "model.hc_head.hc_fn", "f32"),
    ("hc_head_base", "model.hc_head.hc_base", "f32"),
    ("hc_head_scale", "model.hc_head.hc_scale", "f32"),
)
_LAYER = (
    ("attn_norm.weight", "input_layernorm.weight", "bf16"),
    ("ffn_norm.weight", "post_attention_layernorm.weight", "bf16"),
    ("hc_attn_fn", "attn_hc.fn", "f32"),
    ("hc_attn_base", "attn_hc.base", "f32"),
    ("hc_attn_scale", "attn_hc.scale", "f32"),
    ("hc_ffn_fn", "ffn_hc.fn", "f32"),
    ("hc_ffn_base", "ffn_hc.base", "f32"),
    ("hc_ffn_scale", "ffn_hc.scale", "f32"),
    ("attn.attn_sink", "self_attn.sinks", "f32"),
    ("attn.wq_a.weight", "self_attn.q_a_proj.weight", "fp8"),
    ("attn.q_norm.weight", "self_attn.q_a_norm.weight", "bf16"),
    ("attn.wq_b.weight", "self_attn.q_b_proj.weight", "fp8"),
    ("attn.wkv.weight", "self_attn.kv_proj.weight", "fp8"),
    ("attn.kv_norm.weight", "self_attn.kv_norm.weight", "bf16"),
    ("attn.wo_a.weight", "self_attn.o_a_proj.weight", "fp8"),
    ("attn.wo_b.weight", "self_attn.o_b_proj.weight", "fp8"),
    ("ffn.gate.weight", "mlp.gate.weight", "bf16"),
    ("ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight", "fp8"),
    ("ffn.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight", "fp8"),
    ("ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight", "fp8"),
)
_COMPRESSOR = (
    ("ape", "position_bias", "f32"),
    ("wkv.weight", "kv_proj.weight", "bf16"),
    ("wgate.weight", "gate_proj.weight", "bf16"),
    ("norm.weight", "kv_norm.weight", "bf16"),
)
_INDEXER = (
    ("wq_b.weight", "q_b_proj.weight", "fp8"),
    ("weights_proj.weight", "scorer.weights_proj.weight", "bf16"),
)


def _layer(index: int) -> Iterator[Entry]:
    official, ours = f"layers.{index}.", f"model.layers.{index}."
    for name, other, storage in _LAYER:
        yield Entry(official + name, ours + other, storage)
    if index < HASH_LAYERS:
        yield Entry(official + "ffn.gate.tid2eid", ours + "mlp.gate.tid2eid", "i32")
    else:
        yield Entry(official + "ffn.gate.bias", ours + "mlp.gate.e_score_correction_bias", "f32")
    if COMPRESS_RATIOS[index]:
        for name, other, storage in _COMPRESSOR:
            yield Entry(f"{official}attn.compressor.{name}", f"{ours}self_attn.compressor.{other}", storage)
    if COMPRESS_RATIOS[index] == 4:
        for name, other, storage in _COMPRESSOR:
            yield Entry(
                f"{official}attn.indexer.compressor.{name}", f"{ours}self_attn.compressor.indexer.{other}", storage
            )
        for name, other, storage in _INDEXER:
            yield Entry(f"{official}attn.indexer.{name}", f"{ours}self_attn.compressor.indexer.{other}", storage)
    for expert in range(EXPERTS):
        for part, stacked in (("w1", "gate_up_proj"), ("w2", "down_proj"), ("w3", "gate_up_proj")):
            yield Entry(
                f"{official}ffn.experts.{expert}.{part}.weight", f"{ours}mlp.experts.{stacked}", "fp4", expert, part
            )


def entries() -> Iterator[Entry]:
    """Every weight of the checkpoint, in file order."""
    for name, other, storage in _TOP:
        yield Entry(name, other, storage)
    for index in range(LAYERS):
        yield from _layer(index)


def scale_name(official: str) -> str:
    """Name of the scale tensor that goes with a quantised weight."""
    return official.removesuffix("weight") + "scale"
