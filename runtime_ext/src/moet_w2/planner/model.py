"""The dimensions of a DeepSeek-V4 model that bytes and reads follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError
from ..geometry import LayerGeometry
from ..official import DSPARK_LAYERS


@dataclass(frozen=True)
class Model:
    """One model at tensor-parallel size 1. Names are those of config.json, shortened.

    Attributes:
        geometry: one layer of routed experts.
        top_k: routed experts of a token.
        shared_width: width of the shared experts together.
        compress_ratios: for each target layer 0 (sliding window only), 4 or 128.
        hash_layers: leading layers whose experts a table gives by token id.
        draft_layers: DSpark layers that follow the target's; 0 where the checkpoint has none.
        taps: target layers whose hidden states the draft reads.
        rope_positions: rows of a table of rotary embeddings.
    """

    geometry: LayerGeometry
    top_k: int
    shared_width: int
    compress_ratios: tuple[int, ...]
    hash_layers: int
    draft_layers: int
    taps: int
    markov_rank: int
    vocab: int
    heads: int
    head_dim: int
    rope_dim: int
    q_lora: int
    o_groups: int
    o_lora: int
    index_heads: int
    index_dim: int
    index_topk: int
    streams: int
    window: int
    rope_positions: int

    @property
    def hidden(self) -> int:
        return self.geometry.hidden

    @property
    def target_layers(self) -> int:
        return len(self.compress_ratios)

    @property
    def layers(self) -> int:
        return self.target_layers + self.draft_layers

    def is_draft(self, key: int) -> bool:
        return key >= self.target_layers

    def ratio(self, key: int) -> int:
        """Compression of a layer's keys: 0, 4 or 128. Draft layers only have a sliding window."""
        return 0 if self.is_draft(key) else self.compress_ratios[key]


FLASH: Mapping[str, Any] = {
    "num_hidden_layers": 43,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "num_hash_layers": 3,
    "compress_ratios": [0 if layer < 2 else 128 if layer % 2 else 4 for layer in range(43)],
    "vocab_size": 129280,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "sliding_window": 128,
    "max_position_embeddings": 1048576,
    "dspark_target_layer_ids": [40, 41, 42],
    "dspark_markov_rank": 256,
}
"""config.json of DeepSeek-V4-Flash-0731, as far as it is read here."""


def from_config(config: Mapping[str, Any], draft_layers: int | None = None) -> Model:
    """A model from the content of its config.json.

    Args:
        config: the parsed file.
        draft_layers: DSpark layers, where they are known otherwise; default: what config.json says, none where it
            has no ``dspark_markov_rank``.

    Raises:
        CheckpointError: a dimension is missing or no positive integer, or compress_ratios do not fit the layers.
    """
    layers = _positive(config, "num_hidden_layers")
    ratios = config.get("compress_ratios")
    known = isinstance(ratios, list | tuple) and all(ratio in (0, 1, 4, 128) for ratio in ratios[:layers])
    if not known or len(ratios) < layers:
        raise CheckpointError(
            f"config.json: compress_ratios = {ratios!r} must give 0, 4 or 128 for each of {layers} layers; "
            "give the config.json of a DeepSeek-V4 checkpoint"
        )
    rank = _count(config, "dspark_markov_rank")
    if draft_layers is None:
        draft_layers = (_count(config, "n_mtp_layers") or DSPARK_LAYERS) if rank else 0
    taps = config.get("dspark_target_layer_ids") or (0,) * DSPARK_LAYERS
    if not isinstance(taps, list | tuple):
        raise CheckpointError(f"config.json: dspark_target_layer_ids = {taps!r}; a list of layers is needed")
    experts, top_k = _positive(config, "n_routed_experts"), _positive(config, "num_experts_per_tok")
    if top_k > experts:
        raise CheckpointError(f"config.json: num_experts_per_tok = {top_k}; n_routed_experts, {experts}, is the most")
    width = _positive(config, "moe_intermediate_size")
    positions = _positive(config, "max_position_embeddings")
    return Model(
        geometry=LayerGeometry(experts, _positive(config, "hidden_size"), width),
        top_k=top_k,
        shared_width=width * _count(config, "n_shared_experts"),
        compress_ratios=tuple(0 if ratio == 1 else ratio for ratio in ratios[:layers]),
        hash_layers=_count(config, "num_hash_layers"),
        draft_layers=draft_layers,
        taps=len(taps),
        markov_rank=rank,
        vocab=_positive(config, "vocab_size"),
        heads=_positive(config, "num_attention_heads"),
        head_dim=_positive(config, "head_dim"),
        rope_dim=_positive(config, "qk_rope_head_dim"),
        q_lora=_positive(config, "q_lora_rank"),
        o_groups=_positive(config, "o_groups"),
        o_lora=_positive(config, "o_lora_rank"),
        index_heads=_positive(config, "index_n_heads"),
        index_dim=_positive(config, "index_head_dim"),
        index_topk=_positive(config, "index_topk"),
        streams=_positive(config, "hc_mult"),
        window=_positive(config, "sliding_window"),
        rope_positions=positions,
    )


def _positive(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"config.json: {name} = {value!r}; a positive integer is needed")
    return value


def _count(config: Mapping[str, Any], name: str) -> int:
    """An integer that may be missing, which is 0."""
    value = config.get(name)
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise CheckpointError(f"config.json: {name} = {value!r}; an integer of at least 0 is needed")
    return value
