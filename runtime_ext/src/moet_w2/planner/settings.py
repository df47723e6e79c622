"""How a model is served, as far as memory and speed depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from .model import Model


@dataclass(frozen=True)
class Settings:
    """Options of the server.

    Attributes:
        context: ``max-model-len``.
        utilization: ``gpu-memory-utilization``.
        seqs: ``max-num-seqs``.
        batched: ``max-num-batched-tokens``, the tokens of one chunk of prefill.
        speculative: draft tokens of a step and request; 0 for none.
        correction_bytes: size of the FP4 correction pool.
        excluded: keys of layers that never take a correction slot; None for the draft layers.
        block: ``block-size`` of the KV cache.
        async_scheduling: whether the next step is scheduled before the last one is settled.
        logits_bytes: most bytes of one piece of the indexer's scores: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB.
        graphs_counted: whether vLLM takes its estimate of CUDA graphs off the KV cache:
            VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS.
    """

    context: int = 300_000
    utilization: float = 0.974
    seqs: int = 4
    batched: int = 2048
    speculative: int = 4
    correction_bytes: int = 6 << 30
    excluded: tuple[int, ...] | None = None
    block: int = 256
    async_scheduling: bool = True
    logits_bytes: int = 128 << 20
    graphs_counted: bool = False

    def __post_init__(self) -> None:
        for name in ("context", "seqs", "batched", "block", "logits_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("speculative", "correction_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        if not 0 < self.utilization <= 1:
            raise ConfigError(f"utilization is {self.utilization}; it is a share of the card's memory, such as 0.974")
        if self.block % 128:
            raise ConfigError(f"block is {self.block}; layers that compress by 128 need a multiple of 128")

    def uncorrected(self, model: Model) -> frozenset[int]:
        """Keys of the layers that never take a correction slot."""
        return frozenset(range(model.target_layers, model.layers) if self.excluded is None else self.excluded)

    def slots(self, model: Model) -> int:
        """Slots of the correction pool: whole rows, and no more than experts that may take one."""
        eligible = model.geometry.experts * (model.layers - len(self.uncorrected(model)))
        return min(eligible, self.correction_bytes // model.geometry.correction_row_bytes)

    @property
    def chunk(self) -> int:
        """Tokens of a whole chunk of prefill: the scheduler keeps slots free for the drafts that are made beside it
        (vllm/config/speculative.py, max_num_new_slots_for_drafting; DSpark takes one less than its draft tokens)."""
        return max(1, self.batched - max(0, self.speculative - 1))

    @property
    def graph_tokens(self) -> int:
        """Most tokens of a step that a CUDA graph launches: vllm/config/vllm.py, _set_cudagraph_sizes."""
        return min(2 * self.seqs * self.query, 512)

    @property
    def in_flight(self) -> int:
        """Tokens that are scheduled and not settled, at most: vLLM's max_in_flight_tokens."""
        return self.batched * (2 if self.async_scheduling else 1)

    @property
    def query(self) -> int:
        """Tokens of one request in a decode step of the target: its last one and the draft's."""
        return 1 + self.speculative
