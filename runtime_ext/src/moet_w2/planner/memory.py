"""Bytes on the card by purpose, what they leave for the KV cache, and what stays free while a long prompt runs.

vLLM gives the KV cache what gpu-memory-utilization of the card's memory leaves beside weights, what else it finds in
use after a profiled step, and the peak of that step; and its estimate of CUDA graphs, where that is counted. Mapped
layers lie in host memory, which nothing of this counts.

What vLLM does not count has to fit into the rest of the card: the CUDA context, which is there before it first looks;
what is allocated after the profile; and what a chunk of a long prompt takes beyond the profiled step (step_memory.py).
``beyond`` lists that, and ``spare`` is what then is left. A server whose ``spare`` is negative runs out of memory in a
prompt that it has admitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import kv_cache, step_memory, weights
from .machine import GIB, Machine
from .model import Model
from .settings import Settings

LIBRARIES_BYTES = int(0.34 * GIB)
"""What vLLM finds in use after its profile beyond all that is listed here: code of libraries, their workspaces, what
the allocator rounds up. Taken from KV caches of three servers of vLLM 0.32 on one H200, which leave 0.33 to 0.34 GiB
beside all other lines: 2.90 GiB at 300,000 tokens, 5.36 at 524,288, 2.91 with no layer mapped (a test compares)."""

GRAPHS_BYTES = int(0.72 * GIB)
"""vLLM's estimate of CUDA graphs, as the same servers logged it. The graphs themselves took 0.25 GiB; the rest is what
the first captures load and keep, which stays too."""

CONTEXT_BYTES = 522 << 20
"""CUDA context on the same H200: 0.51 of 139.80 GiB were in use when vLLM looked first."""

LATE_BYTES = 745 << 20
"""What is allocated after the profile and stays: code of kernels, library workspaces, graphs; attention's buffers that
grow with the context are computed. nvidia-smi on the same H200, from the end of the profile to the first request,
less the KV cache: 825 MiB at 524,288 tokens, 80 of them such buffers."""

FRAGMENTS_BYTES = 494 << 20
"""Free memory that PyTorch's allocator cannot give to the next piece of scores: it lies in pieces beside live tensors.
So much it said to be reserved and unallocated when the 512k profile ran out of memory at 130,880 tokens. Scores of each
chunk are larger than any before, so no block of theirs is used again; other tensors split those blocks."""

LEAST_SPARE = GIB // 2
"""What should stay free in the longest prompt: the constants above are of one card, and another loads other kernels."""

OTHERS = 0.45
"""Tokens that the other requests hold together beside one of full length, as a share of it. A choice, made with the
profiles in view: those of the original system follow from any share between 0.36 and 0.55, ours of 300,000 tokens from
up to 0.48."""

W2_TARGET = "W2 planes, target"
W2_DRAFT = "W2 planes, draft"
CORRECTION = "FP4 correction pool"
TABLES = "rotary tables and step buffers"
WORKSPACE = "attention workspace"
RUNTIME = "libraries, graphs, step peak"
LIBRARIES = "libraries"
STEP = "step peak, as profiled"
GRAPHS = "graphs, as estimated"
CONTEXT = "CUDA context"
LATE = "loaded after the profile, with graphs"
LONGER = "a longest prompt beyond the profile"
FRAGMENTS = "in fragments that fit nothing"
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
        beyond: bytes on the card by purpose that ``share`` does not count. What the profile set aside for a step and
            for graphs is taken off them.
        spare: bytes that stay free while a prompt of the full context runs; negative where that runs out of memory.
    """

    share: int
    device: dict[str, int]
    mapped_bytes: int
    kv_bytes: int
    kv_needed: int
    kv_reserve: int
    kv_tokens: int
    beyond: dict[str, int]
    spare: int

    @property
    def safe(self) -> bool:
        """Whether the longest prompt leaves :data:`LEAST_SPARE` free."""
        return self.spare >= LEAST_SPARE

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
    runtime_bytes: int | None = None,
    others: float = OTHERS,
) -> Memory:
    """Account for one placement.

    Args:
        model: its dimensions.
        machine: the card.
        settings: how it is served.
        mapped: keys of the layers in host memory.
        runtime_bytes: what vLLM counts beside weights, tables and workspace; None for libraries, step peak and graphs
            as they are computed here.
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
        **(runtime(model, settings) if runtime_bytes is None else {RUNTIME: runtime_bytes}),
    }
    share = int(machine.cuda_bytes * settings.utilization)
    kv_bytes = share - sum(device.values())
    layout, uncounted = kv_cache.layout(model, settings.block), beyond(model, settings)
    return Memory(
        share,
        device,
        len(mapped) * one,
        kv_bytes,
        layout.needed(settings.context, settings.in_flight),
        reserve(layout, settings, others),
        layout.tokens(kv_bytes, settings.context, settings.in_flight),
        uncounted,
        machine.cuda_bytes - share - sum(uncounted.values()),
    )


def runtime(model: Model, settings: Settings) -> dict[str, int]:
    """What vLLM counts beside weights, tables and workspace."""
    counted = {LIBRARIES: LIBRARIES_BYTES, STEP: step_memory.profiled(model, settings)}
    return counted | ({GRAPHS: GRAPHS_BYTES} if settings.graphs_counted else {})


def beyond(model: Model, settings: Settings) -> dict[str, int]:
    """What vLLM does not count; a line is negative where it counted more than is needed."""
    # Decode and prefill indices of layers that compress by 128, and the indexer's block table of every token.
    longest = -(-settings.context // 128) if 128 in model.compress_ratios else 0
    buffers = 4 * settings.batched * (2 * longest + -(-settings.context // settings.block))
    return {
        CONTEXT: CONTEXT_BYTES,
        LATE: LATE_BYTES + buffers - (GRAPHS_BYTES if settings.graphs_counted else 0),
        LONGER: step_memory.prompt(model, settings) - step_memory.profiled(model, settings),
        FRAGMENTS: FRAGMENTS_BYTES,
    }


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
