"""A made-up DeepSeek-V4 model as a GGUF file, for llama.cpp's architecture ``deepseek4``.

Shapes are those of a config.json; types are those that llama.cpp's own converter chooses for this checkpoint: MXFP4
experts (17 bytes for 32 weights, one E8M0 exponent and 16 bytes of codes), Q8_0 where the checkpoint has FP8 (34 bytes
for 32 weights: a float16 scale and 32 int8), BF16 and F32 for the rest. The file has no tokenizer. Format: GGUF
version 3, as ggml's gguf.h describes it; names and keys: llama.cpp's llama-arch.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

F32, Q8_0, I32, BF16, MXFP4 = 0, 8, 26, 30, 39
"""ggml_type."""
_BLOCKS = {F32: (1, 4), Q8_0: (32, 34), I32: (1, 4), BF16: (1, 2), MXFP4: (32, 17)}
"""Weights and bytes of a block."""
_U32, _F32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9
"""gguf_type."""
_ALIGNMENT = 32
_POOL_BLOCKS = 1 << 20
_SQRT_SOFTPLUS = 4
"""Of llama_expert_gating_func_type: this architecture's router."""
SEED = 1


@dataclass(frozen=True)
class Tensor:
    """One tensor: its name, its shape with the innermost dimension first, its ggml_type."""

    name: str
    shape: tuple[int, ...]
    kind: int

    @property
    def nbytes(self) -> int:
        weights, size = _BLOCKS[self.kind]
        return int(np.prod(self.shape)) // weights * size


def tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    """Every tensor of the target model."""
    hidden, vocabulary, many = config["hidden_size"], config["vocab_size"], config["hc_mult"]
    yield Tensor("token_embd.weight", (hidden, vocabulary), BF16)
    yield Tensor("output_norm.weight", (hidden,), F32)
    yield Tensor("output.weight", (hidden, vocabulary), BF16)
    yield Tensor("output_hc_fn.weight", (many * hidden, many), F32)
    yield Tensor("output_hc_base.weight", (many,), F32)
    yield Tensor("output_hc_scale.weight", (1,), F32)
    for layer in range(config["num_hidden_layers"]):
        for name, shape, kind in _layer(config, layer):
            yield Tensor(f"blk.{layer}.{name}", shape, kind)


def _layer(config: dict[str, Any], layer: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    hidden, heads, head = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    rank, groups, out = config["q_lora_rank"], config["o_groups"], config["o_lora_rank"]
    experts, width, many = config["n_routed_experts"], config["moe_intermediate_size"], config["hc_mult"]
    yield "attn_norm.weight", (hidden,), F32
    yield "attn_sinks.weight", (heads,), F32
    yield "attn_q_a.weight", (hidden, rank), Q8_0
    yield "attn_q_a_norm.weight", (rank,), F32
    yield "attn_q_b.weight", (rank, heads * head), Q8_0
    yield "attn_kv.weight", (hidden, head), Q8_0
    yield "attn_kv_a_norm.weight", (head,), F32
    yield "attn_output_a.weight", (heads * head // groups, out * groups), Q8_0
    yield "attn_output_b.weight", (groups * out, hidden), Q8_0
    for part in ("attn", "ffn"):
        yield f"hc_{part}_fn.weight", (many * hidden, (2 + many) * many), F32
        yield f"hc_{part}_base.weight", ((2 + many) * many,), F32
        yield f"hc_{part}_scale.weight", (3,), F32
    if ratio := config["compress_ratios"][layer]:
        double = 2 if ratio == 4 else 1
        yield from _compressor("attn", hidden, double * head, head, ratio)
        if ratio == 4:
            index, index_heads = config["index_head_dim"], config["index_n_heads"]
            yield "indexer.proj.weight", (hidden, index_heads), BF16
            yield "indexer.attn_q_b.weight", (rank, index_heads * index), Q8_0
            yield from _compressor("indexer", hidden, 2 * index, index, ratio)
    yield "ffn_gate_inp.weight", (hidden, experts), F32
    if layer < config["num_hash_layers"]:
        yield "ffn_gate_tid2eid.weight", (config["num_experts_per_tok"], config["vocab_size"]), I32
    else:
        yield "exp_probs_b.bias", (experts,), F32
    yield "ffn_norm.weight", (hidden,), F32
    shared = width * config["n_shared_experts"]
    for name, columns, rows in (("gate", hidden, width), ("down", width, hidden), ("up", hidden, width)):
        yield f"ffn_{name}_exps.weight", (columns, rows, experts), MXFP4
    for name, columns, rows in (("gate", hidden, shared), ("down", shared, hidden), ("up", hidden, shared)):
        yield f"ffn_{name}_shexp.weight", (columns, rows), Q8_0


def _compressor(part: str, hidden: int, wide: int, norm: int, ratio: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    yield f"{part}_compressor_kv.weight", (hidden, wide), BF16
    yield f"{part}_compressor_gate.weight", (hidden, wide), BF16
    yield f"{part}_compressor_ape.weight", (wide, ratio), F32
    yield f"{part}_compressor_norm.weight", (norm,), F32


def keys(config: dict[str, Any]) -> dict[str, tuple[int, Any]]:
    """Metadata: key -> (gguf_type, value); the value of an array is (gguf_type of its items, items)."""
    layers, rope = config["num_hidden_layers"], config["rope_scaling"]
    clamp = (_ARRAY, (_F32, [config["swiglu_limit"]] * layers))
    own: dict[str, tuple[int, Any]] = {
        "vocab_size": (_U32, config["vocab_size"]),
        "context_length": (_U32, config["max_position_embeddings"]),
        "embedding_length": (_U32, config["hidden_size"]),
        "embedding_length_out": (_U32, config["hidden_size"] * config["hc_mult"]),
        "block_count": (_U32, layers),
        "feed_forward_length": (_U32, config["moe_intermediate_size"]),
        "expert_feed_forward_length": (_U32, config["moe_intermediate_size"]),
        "expert_count": (_U32, config["n_routed_experts"]),
        "expert_used_count": (_U32, config["num_experts_per_tok"]),
        "expert_shared_count": (_U32, config["n_shared_experts"]),
        "expert_weights_scale": (_F32, config["routed_scaling_factor"]),
        "expert_weights_norm": (_BOOL, config["norm_topk_prob"]),
        "expert_gating_func": (_U32, _SQRT_SOFTPLUS),
        "swiglu_clamp_exp": clamp,
        "swiglu_clamp_shexp": clamp,
        "hash_layer_count": (_U32, config["num_hash_layers"]),
        "attention.head_count": (_U32, config["num_attention_heads"]),
        "attention.head_count_kv": (_U32, 1),
        "attention.key_length": (_U32, config["head_dim"]),
        "attention.value_length": (_U32, config["head_dim"]),
        "attention.layer_norm_rms_epsilon": (_F32, config["rms_norm_eps"]),
        "attention.q_lora_rank": (_U32, config["q_lora_rank"]),
        "attention.sliding_window": (_U32, config["sliding_window"]),
        "attention.output_group_count": (_U32, config["o_groups"]),
        "attention.output_lora_rank": (_U32, config["o_lora_rank"]),
        "attention.compress_ratios": (_ARRAY, (_U32, config["compress_ratios"][:layers])),
        "attention.compress_rope_freq_base": (_F32, config["compress_rope_theta"]),
        "attention.indexer.head_count": (_U32, config["index_n_heads"]),
        "attention.indexer.key_length": (_U32, config["index_head_dim"]),
        "attention.indexer.top_k": (_U32, config["index_topk"]),
        "hyper_connection.count": (_U32, config["hc_mult"]),
        "hyper_connection.sinkhorn_iterations": (_U32, config["hc_sinkhorn_iters"]),
        "hyper_connection.epsilon": (_F32, config["hc_eps"]),
        "rope.dimension_count": (_U32, config["qk_rope_head_dim"]),
        "rope.freq_base": (_F32, config["rope_theta"]),
        "rope.scaling.type": (_STRING, rope["type"]),
        "rope.scaling.factor": (_F32, rope["factor"]),
        "rope.scaling.original_context_length": (_U32, rope["original_max_position_embeddings"]),
    }
    general: dict[str, tuple[int, Any]] = {
        "general.architecture": (_STRING, "deepseek4"),
        "tokenizer.ggml.model": (_STRING, "none"),
    }
    return general | {f"deepseek4.{key}": value for key, value in own.items()}


def write(path: Path, config: dict[str, Any]) -> int:
    """Write the model.

    Args:
        path: the file.
        config: as in a config.json of this architecture.

    Returns:
        bytes of its tensors.
    """
    listed, offset = list(tensors(config)), 0
    with path.open("wb") as file:
        metadata = keys(config)
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(metadata)))
        for key, (kind, value) in metadata.items():
            file.write(_text(key) + struct.pack("<I", kind) + _value(kind, value))
        for tensor in listed:
            sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
            file.write(_text(tensor.name) + sizes + struct.pack("<IQ", tensor.kind, offset))
            offset += _padded(tensor.nbytes)
        file.write(bytes(_padded(file.tell()) - file.tell()))
        noise = np.random.default_rng(SEED)
        pools = {kind: _pool(kind, noise) for kind in (F32, Q8_0, BF16, MXFP4)}
        for tensor in listed:
            _fill(file, tensor, pools, config, noise)
            file.write(bytes(_padded(tensor.nbytes) - tensor.nbytes))
    return offset


def _fill(
    file: BinaryIO,
    tensor: Tensor,
    pools: dict[int, memoryview],
    config: dict[str, Any],
    noise: np.random.Generator,
) -> None:
    if tensor.kind == I32:  # experts of each token
        columns, rows = tensor.shape
        chosen = noise.integers(0, config["n_routed_experts"], (rows, 1)) + np.arange(columns) * 7
        file.write((chosen % config["n_routed_experts"]).astype(np.int32).tobytes())
        return
    if tensor.kind == F32 and tensor.name.endswith(("norm.weight", "scale.weight")):
        file.write(np.ones(tensor.shape, np.float32).tobytes())
        return
    pool, left = pools[tensor.kind], tensor.nbytes
    while left:
        part = min(left, len(pool))
        file.write(pool[:part])
        left -= part


def _pool(kind: int, noise: np.random.Generator) -> memoryview:
    """Random blocks of a type, written over and over: weights of a few hundredths."""
    weights, size = _BLOCKS[kind]
    if kind == F32:
        return memoryview((noise.standard_normal(_POOL_BLOCKS) * 0.02).astype(np.float32).tobytes())
    if kind == BF16:
        values = (noise.standard_normal(_POOL_BLOCKS) * 0.02).astype(np.float32)
        return memoryview((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    blocks = noise.integers(0, 256, (_POOL_BLOCKS, size), np.uint8)
    if kind == MXFP4:
        blocks[:, 0] = 127 - 6
    else:
        blocks[:, :2] = np.full(1, 0.02 / 73, np.float16).view(np.uint8)
    return memoryview(blocks.tobytes())


def _value(kind: int, value: Any) -> bytes:
    if kind == _ARRAY:
        items, values = value
        return struct.pack("<IQ", items, len(values)) + b"".join(_value(items, each) for each in values)
    if kind == _STRING:
        return _text(value)
    return struct.pack({_U32: "<I", _F32: "<f", _BOOL: "<?"}[kind], value)


def _text(words: str) -> bytes:
    encoded = words.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
