"""Bytes on the card by purpose, and what they leave for the KV cache.

vLLM gives the KV cache what gpu-memory-utilization of the card's memory leaves beside weights, peak of a profiled step,
graphs and CUDA context. Mapped layers lie in host memory, which nothing of this counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import kv_cache, weights
from .machine import GIB, Machine
from .model import Model
from .settings import Settings

RUNTIME_BYTES = int(0.92 * GIB)
"""CUDA context, libraries, graphs and the peak of a step. Taken from one measurement, not computed: it is what the
378,490 KV tokens that the original system reported in its 300k profile (RTX PRO 6000, utilization 0.974, layers 43 to
45 mapped) leave beside all other lines here, rounded to 0.01 GiB. Its 512k profile is the check (reported.py)."""

OTHERS = 0.5
"""Tokens that the other requests hold together beside one of full length, as a share of it. A choice, made with the two
profiles of the original system in view: both follow from any share between 0.36 and 0.55."""

W2_TARGET = "W2 planes, target"
W2_DRAFT = "W2 planes, draft"
CORRECTION = "FP4 correction pool"
TABLES = "rotary tables and step buffers"
WORKSPACE = "attention workspace"
RUNTIME = "CUDA context, graphs, step peak"
KV_CACHE = "KV cache"


@dataclass(frozen=True)
class Memory:
    """Where every byte goes.

    Attributes:
        share: bytes that vLLM may use: utilization of the card.
        device: bytes on the card by purpose, but for the KV cache.
        mapped_bytes: bytes of mapped layers in host memory.
        kv_bytes: what is left for the KV cache; negative where nothing is.
        kv_needed: bytes below which vLLM refuses the context.
        kv_reserve: bytes beyond that which let the other requests run beside one of full length.
        kv_tokens: KV cache size as vLLM reports it.
    """

    share: int
    device: dict[str, int]
    mapped_bytes: int
    kv_bytes: int
    kv_needed: int
    kv_reserve: int
    kv_tokens: int

    @property
    def fits(self) -> bool:
        """Whether vLLM starts: the context fits once."""
        return self.kv_bytes >= self.kv_needed

    @property
    def roomy(self) -> bool:
        """Whether the other requests fit beside one of full length."""
        return self.kv_bytes >= self.kv_needed + self.kv_reserve


def account(
    model: Model,
    machine: Machine,
    settings: Settings,
    mapped: tuple[int, ...],
    runtime_bytes: int = RUNTIME_BYTES,
    others: float = OTHERS,
) -> Memory:
    """Account for one placement.

    Args:
        model: its dimensions.
        machine: the card.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        runtime_bytes: see :data:`RUNTIME_BYTES`.
        others: tokens of the other requests together, as a share of the context, for ``kv_reserve``.
    """
    one = model.geometry.nbytes
    drafts = sum(model.is_draft(key) for key in mapped)
    dense = {name: nbytes for name, nbytes in weights.dense(model).items() if nbytes}
    device = {
        W2_TARGET: (model.target_layers - (len(mapped) - drafts)) * one,
        W2_DRAFT: (model.draft_layers - drafts) * one,
        **dense,
        CORRECTION: settings.slots(model) * model.geometry.correction_row_bytes,
        TABLES: tables(model, settings),
        WORKSPACE: workspace(model, machine, settings),
        RUNTIME: runtime_bytes,
    }
    share = int(machine.cuda_bytes * settings.utilization)
    kv_bytes = share - sum(device.values())
    layout = kv_cache.layout(model, settings.block)
    return Memory(
        share,
        device,
        len(mapped) * one,
        kv_bytes,
        layout.needed(settings.context, settings.in_flight),
        reserve(layout, settings, others),
        layout.tokens(kv_bytes, settings.context, settings.in_flight),
    )


def reserve(layout: kv_cache.Layout, settings: Settings, others: float) -> int:
    """Bytes that the other requests hold while they decode: ``others`` of the context between them.

    Without them a second request waits until the long one has ended, and no prefix stays cached beside it.
    """
    count = settings.seqs - 1
    if not count:
        return 0
    each = max(1, int(settings.context * others / count))
    return count * layout.blocks(each, 2 * settings.query) * layout.block_bytes


def tables(model: Model, settings: Settings) -> int:
    """Two fp32 tables of rotary embeddings, with YaRN and without; the indexer's choices; the draft's hidden states."""
    buffers = settings.batched * model.index_topk * 4
    if model.draft_layers:
        buffers += settings.batched * (model.index_topk * 4 + 2 * model.streams * model.hidden + 2 * model.hidden)
    return 2 * model.rope_positions * model.rope_dim * 4 + buffers


def workspace(model: Model, machine: Machine, settings: Settings) -> int:
    """What attention reserves for prefill: it grows with the context.

    The indexer gathers fp8 keys of 40 contexts (16 beyond 262,144 tokens), compressed by 4, 132 bytes each
    (v1/attention/backends/mla/indexer.py, get_max_prefill_buffer_size). FlashMLA gathers four requests' keys of one
    layer in bf16 into the same workspace (nvidia/flashmla.py), so the larger counts. FlashInfer, on compute capability
    12, has 128 MiB of its own (nvidia/flashinfer_sparse.py).
    """
    factor = (5 if settings.context <= 256 * 1024 else 2) * 8
    indexer = settings.context * factor // 4 * (model.index_dim + 4) if 4 in model.compress_ratios else 0
    if machine.sm >= 12:
        return indexer + (128 << 20)
    ratio = min((ratio for ratio in model.compress_ratios if ratio), default=0)
    keys = (-(-settings.context // ratio) if ratio else 0) + model.window + settings.batched
    return max(indexer, 4 * keys * model.head_dim * 2)
