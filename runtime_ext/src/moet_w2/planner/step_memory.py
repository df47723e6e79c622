"""Device memory of a step: what vLLM's profile sees of it, and what a prompt of the full context needs.

vLLM runs one step of max-num-batched-tokens without a KV cache (gpu_worker.py, determine_available_memory) and gives
the KV cache all that its peak leaves of the utilization. Both that step and a chunk of a prompt peak where a layer with
an indexer has scored its keys. Live then, bytes a token:

    residual streams    bf16 [streams, hidden], those of this sublayer and those that the caller still holds
    hidden states       bf16 [hidden], likewise twice
    queries, output     bf16 [heads, head_dim] each
    latents             bf16 [q_lora + head_dim], before and after their norm
    compressor scores   fp32 [4 head_dim], and of the indexer fp32 [4 index_dim]
    indexer             fp8 [index_heads, index_dim]; weights fp32 and bf16 [index_heads]
    for the draft       bf16 [hidden] of each tapped layer, and the streams that the last was made of

To these come the scores of every token over every key of the context, compressed by 4. vLLM cuts their rows into pieces
of VLLM_SPARSE_INDEXER_MAX_LOGITS_MB. The profile allocates one such buffer; a prompt holds two pieces, because the one
before is still referenced while the next is made (model_executor/layers/sparse_attn_indexer.py).
"""

from __future__ import annotations

from .model import Model
from .settings import Settings

_COLUMNS = 256
"""DeepGEMM rounds a row of scores up to a multiple of this, and adds one: 33,024 columns for 32,720 keys."""


def profiled(model: Model, settings: Settings) -> int:
    """Peak of the profiled step in bytes."""
    scores = settings.logits_bytes if 4 in model.compress_ratios else 0
    return max(_live(model, settings) + scores, _experts(model, settings))


def prompt(model: Model, settings: Settings) -> int:
    """Peak of the last chunk of a prompt of the full context in bytes, beside requests that decode."""
    return max(_live(model, settings) + _scores(model, settings), _experts(model, settings))


def _live(model: Model, settings: Settings) -> int:
    scored = 4 * (4 * model.head_dim + 4 * model.index_dim) + model.index_heads * (model.index_dim + 4 + 2)
    attention = 2 * (2 * model.heads * model.head_dim + 2 * (model.q_lora + model.head_dim))
    return settings.batched * (_carried(model) + attention + scored)


def _experts(model: Model, settings: Settings) -> int:
    """Peak within routed experts: their workspace (kernels/shapes.py) and both outputs."""
    routes = model.top_k * (2 * model.geometry.width + 4 * model.hidden)
    return settings.batched * (_carried(model) + routes + 2 * 2 * model.hidden)


def _carried(model: Model) -> int:
    """Bytes a token of what is handed from layer to layer."""
    streams = 2 * model.streams * model.hidden
    draft = streams + 2 * model.taps * model.hidden if model.draft_layers else 0
    return 2 * streams + 2 * 2 * model.hidden + draft


def _scores(model: Model, settings: Settings) -> int:
    if 4 not in model.compress_ratios:
        return 0
    keys = settings.context // 4
    row = 4 * (-(-keys // _COLUMNS) + 1) * _COLUMNS
    rows = max(1, settings.logits_bytes // 4 // max(1, keys))
    first = min(rows, settings.batched)
    second = min(rows, settings.batched - first)
    return (first + second + settings.seqs * settings.query) * row
