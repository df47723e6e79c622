"""Bytes of everything but routed experts, by purpose, as vLLM holds it: fp8 blocks, bf16, fp32.

Source: the modules of vllm/models/deepseek_v4 (attention.py, compressor.py, nvidia/model.py, nvidia/dspark.py). A test
compares with the tensors of the demo checkpoint, which has the official names and formats.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from .model import Model

ATTENTION = "attention"
INDEXER = "indexer and compressors"
SHARED = "shared experts"
GATES = "gates and hash tables"
STREAMS = "norms and residual streams"
EMBEDDING = "embedding"
HEAD = "head"
DRAFT = "DSpark but its routed experts"
PURPOSES = (ATTENTION, INDEXER, SHARED, GATES, STREAMS, EMBEDDING, HEAD, DRAFT)

_BLOCK = 128
"""Rows and columns that share one e8m0 scale of an fp8 weight."""


def dense(model: Model) -> dict[str, int]:
    """Bytes by purpose of the whole model, in the order of :data:`PURPOSES`."""
    return dict(zip(PURPOSES, _dense(model), strict=True))


@lru_cache(maxsize=256)
def _dense(model: Model) -> tuple[int, ...]:
    total: Counter[str] = Counter()
    for key in range(model.target_layers):
        total.update(layer(model, key))
    total[STREAMS] += _head_streams(model)
    total[EMBEDDING] = total[HEAD] = 2 * model.vocab * model.hidden
    total[DRAFT] = draft(model)
    return tuple(total[purpose] for purpose in PURPOSES)


def layer(model: Model, key: int) -> dict[str, int]:
    """Bytes of one layer by purpose; a draft layer's are part of :data:`DRAFT` in :func:`dense`."""
    hidden, ratio = model.hidden, model.ratio(key)
    wide = model.heads * model.head_dim
    attention = (
        fp8(model.q_lora, hidden)
        + fp8(model.head_dim, hidden)
        + fp8(wide, model.q_lora)
        + fp8(model.o_groups * model.o_lora, wide // model.o_groups)
        + fp8(hidden, model.o_groups * model.o_lora)
        + 2 * (model.q_lora + model.head_dim)
        + 4 * model.heads
    )
    indexer = _compressor(model, model.head_dim, ratio) if ratio else 0
    if ratio == 4:
        indexer += fp8(model.index_heads * model.index_dim, model.q_lora) + 2 * model.index_heads * hidden
        indexer += _compressor(model, model.index_dim, ratio)
    experts = model.geometry.experts
    table = 4 * model.vocab * model.top_k if key < model.hash_layers else 4 * experts
    shared = 2 * fp8(model.shared_width, hidden) + fp8(hidden, model.shared_width) if model.shared_width else 0
    mixes = (2 + model.streams) * model.streams
    streams = 2 * 4 * (mixes * model.streams * hidden + mixes + 3) + 2 * 2 * hidden
    return {
        ATTENTION: attention,
        INDEXER: indexer,
        SHARED: shared,
        GATES: 2 * experts * hidden + table,
        STREAMS: streams,
    }


def draft(model: Model) -> int:
    """Bytes of the DSpark parts: embedding and head are the target's."""
    if not model.draft_layers:
        return 0
    hidden = model.hidden
    layers = sum(sum(layer(model, model.target_layers + stage).values()) for stage in range(model.draft_layers))
    projections = fp8(hidden, model.taps * hidden) + fp8(model.draft_layers * model.head_dim, hidden)
    markov = 2 * 2 * model.vocab * model.markov_rank + 4 * (hidden + model.markov_rank)
    return layers + projections + markov + 2 * hidden + _head_streams(model)


def fp8(rows: int, columns: int) -> int:
    """Bytes of an fp8 weight with one e8m0 scale for every 128 x 128 block."""
    return rows * columns + -(-rows // _BLOCK) * -(-columns // _BLOCK)


def _compressor(model: Model, head_dim: int, ratio: int) -> int:
    columns = head_dim * (2 if ratio == 4 else 1)
    return 2 * 2 * columns * model.hidden + 4 * ratio * columns + 2 * head_dim


def _head_streams(model: Model) -> int:
    return 4 * (model.streams * model.streams * model.hidden + model.streams + 1) + 2 * model.hidden
