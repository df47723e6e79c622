"""Names, dtypes and shapes of an official DeepSeek-V4 checkpoint, as a function of its config.json. No torch.

Sources: the demo checkpoint's index, which carries the official names and is held to this exactly by a test, and for
the DSpark draft (``mtp.*``) the names that the pinned vLLM reads (vllm/models/deepseek_v4/nvidia/dspark.py). Plain MTP
layers and the vision variant have tensors of their own, which are not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .geometry import SCALE_BLOCK
from .shard import PROJECTIONS

BF16, F32, I32, I8 = "BF16", "F32", "I32", "I8"
FP8, E8M0 = "F8_E4M3", "F8_E8M0"
DSPARK_LAYERS = 3
"""Draft layers that vLLM builds for DSpark where config.json does not give ``n_mtp_layers``
(vllm/models/deepseek_v4/nvidia/dspark.py)."""
_LEARNED_RATIO = 4
"""Layers that compress by this have an indexer, and compressors of twice the width."""


class Tensor(NamedTuple):
    """One tensor.

    Attributes:
        name: in the checkpoint.
        dtype: as safetensors spells it.
        shape: whole, before any split.
        fan_in: columns of a matrix; for a scale, of the weight that it belongs to; 0 for a vector.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    fan_in: int = 0


def target(config: Mapping[str, Any], experts: bool = True) -> Iterator[Tensor]:
    """Every tensor of the model but its draft.

    Args:
        config: content of config.json.
        experts: whether routed experts are among them.
    """
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield _matrix("embed.weight", BF16, vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        yield from _layer(config, f"layers.{layer}.", layer, experts)
    yield _vector("norm.weight", BF16, hidden)
    yield from _streams_head(config, "")
    yield _matrix("head.weight", BF16, vocabulary, hidden)


def draft(config: Mapping[str, Any], experts: bool = True) -> Iterator[Tensor]:
    """Every tensor of the DSpark draft; embedding and head are the target's.

    Args:
        config: content of config.json.
        experts: whether routed experts are among them.
    """
    hidden, rank, vocabulary = config["hidden_size"], config["dspark_markov_rank"], config["vocab_size"]
    stages = config.get("n_mtp_layers") or DSPARK_LAYERS
    yield from _fp8("mtp.0.main_proj", hidden, len(config["dspark_target_layer_ids"]) * hidden, _block(config))
    yield _vector("mtp.0.main_norm.weight", BF16, hidden)
    for stage in range(stages):
        yield from _layer(config, f"mtp.{stage}.", config["num_hidden_layers"] + stage, experts)
    last = f"mtp.{stages - 1}."
    yield _vector(f"{last}norm.weight", BF16, hidden)
    yield from _streams_head(config, last)
    for half in ("markov_w1", "markov_w2"):
        yield _matrix(f"{last}markov_head.{half}.weight", BF16, vocabulary, rank)
    yield _matrix(f"{last}confidence_head.proj.weight", F32, 1, hidden + rank)


def _layer(config: Mapping[str, Any], at: str, number: int, experts: bool) -> Iterator[Tensor]:
    hidden, streams = config["hidden_size"], config["hc_mult"]
    yield _vector(f"{at}attn_norm.weight", BF16, hidden)
    yield _vector(f"{at}ffn_norm.weight", BF16, hidden)
    mixes = (2 + streams) * streams
    for part in ("attn", "ffn"):
        yield _matrix(f"{at}hc_{part}_fn", F32, mixes, streams * hidden)
        yield _vector(f"{at}hc_{part}_base", F32, mixes)
        yield _vector(f"{at}hc_{part}_scale", F32, 3)
    # A draft layer sees its window alone, whatever the list of ratios says of it.
    ratio = config["compress_ratios"][number] if number < config["num_hidden_layers"] else 0
    yield from _attention(config, f"{at}attn.", ratio)
    yield from _ffn(config, f"{at}ffn.", number < config["num_hash_layers"])
    if experts:
        yield from _experts(config, f"{at}ffn.experts.")


def _attention(config: Mapping[str, Any], at: str, ratio: int) -> Iterator[Tensor]:
    hidden, head, lora = config["hidden_size"], config["head_dim"], config["q_lora_rank"]
    heads, groups, block = config["num_attention_heads"], config["o_groups"], _block(config)
    grouped = groups * config["o_lora_rank"]
    yield _vector(f"{at}attn_sink", F32, heads)
    yield from _fp8(f"{at}wq_a", lora, hidden, block)
    yield _vector(f"{at}q_norm.weight", BF16, lora)
    yield from _fp8(f"{at}wq_b", heads * head, lora, block)
    yield from _fp8(f"{at}wkv", head, hidden, block)
    yield _vector(f"{at}kv_norm.weight", BF16, head)
    yield from _fp8(f"{at}wo_a", grouped, heads * head // groups, block)
    yield from _fp8(f"{at}wo_b", hidden, grouped, block)
    if ratio:
        yield from _compressor(f"{at}compressor.", hidden, head, ratio)
    if ratio == _LEARNED_RATIO:
        index_heads, index_head = config["index_n_heads"], config["index_head_dim"]
        yield from _fp8(f"{at}indexer.wq_b", index_heads * index_head, lora, block)
        yield _matrix(f"{at}indexer.weights_proj.weight", BF16, index_heads, hidden)
        yield from _compressor(f"{at}indexer.compressor.", hidden, index_head, ratio)


def _compressor(at: str, hidden: int, head: int, ratio: int) -> Iterator[Tensor]:
    width = head * (2 if ratio == _LEARNED_RATIO else 1)
    yield Tensor(f"{at}ape", F32, (ratio, width))
    yield _matrix(f"{at}wkv.weight", BF16, width, hidden)
    yield _matrix(f"{at}wgate.weight", BF16, width, hidden)
    yield _vector(f"{at}norm.weight", BF16, head)


def _ffn(config: Mapping[str, Any], at: str, hashed: bool) -> Iterator[Tensor]:
    hidden, experts, block = config["hidden_size"], config["n_routed_experts"], _block(config)
    yield _matrix(f"{at}gate.weight", BF16, experts, hidden)
    if hashed:
        yield Tensor(f"{at}gate.tid2eid", I32, (config["vocab_size"], config["num_experts_per_tok"]))
    else:
        yield _vector(f"{at}gate.bias", F32, experts)
    width = (config.get("n_shared_experts") or 0) * config["moe_intermediate_size"]
    for projection in PROJECTIONS if width else ():
        rows, columns = (hidden, width) if projection == "w2" else (width, hidden)
        yield from _fp8(f"{at}shared_experts.{projection}", rows, columns, block)


def _experts(config: Mapping[str, Any], at: str) -> Iterator[Tensor]:
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    for expert in range(config["n_routed_experts"]):
        for projection in PROJECTIONS:
            rows, columns = (hidden, width) if projection == "w2" else (width, hidden)
            yield Tensor(f"{at}{expert}.{projection}.weight", I8, (rows, columns // 2), columns)
            yield Tensor(f"{at}{expert}.{projection}.scale", E8M0, (rows, columns // SCALE_BLOCK), columns)


def _streams_head(config: Mapping[str, Any], at: str) -> Iterator[Tensor]:
    streams = config["hc_mult"]
    yield _matrix(f"{at}hc_head_fn", F32, streams, streams * config["hidden_size"])
    yield _vector(f"{at}hc_head_base", F32, streams)
    yield _vector(f"{at}hc_head_scale", F32, 1)


def _fp8(name: str, rows: int, columns: int, block: tuple[int, int]) -> Iterator[Tensor]:
    yield _matrix(f"{name}.weight", FP8, rows, columns)
    yield Tensor(f"{name}.scale", E8M0, (-(-rows // block[0]), -(-columns // block[1])), columns)


def _matrix(name: str, dtype: str, rows: int, columns: int) -> Tensor:
    return Tensor(name, dtype, (rows, columns), columns)


def _vector(name: str, dtype: str, size: int) -> Tensor:
    return Tensor(name, dtype, (size,))


def _block(config: Mapping[str, Any]) -> tuple[int, int]:
    rows, columns = config["quantization_config"]["weight_block_size"]
    return rows, columns
