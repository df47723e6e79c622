"""The values of a worker's metrics, gathered from what knows them."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from ..cache import phases
from .snapshot import Snapshot, Value, process_ticks
from .steps import Steps

if TYPE_CHECKING:
    from ..runtime import W2Runtime


class Facts:
    """Looks at a worker that serves; from the reporter's thread."""

    def __init__(self, here: W2Runtime, steps: Steps, rank: int, size: int) -> None:
        """Take down what does not change any more.

        Args:
            here: the worker's layers, audited.
            steps: its counts.
            rank, size: which of how many workers.
        """
        self.here, self.steps, self.rank, self.size = here, steps, rank, size
        self._ticks = process_ticks() or 0
        document = here.audit.document()
        found = document["serving"]
        self._info = {
            "profile": found["profile"] or "",
            "device": document["device"]["name"],
            "kernels": found["expert_kernels"],
            "policy": "" if here.correction is None else here.correction.policy,
        }
        layers = document["layers"]
        self._fixed: dict[str, Value] = {
            "moet_worker_start_time_seconds": time.time() - phases.since_process_start(),
            "moet_w2_layers": dict(Counter(layer["placement"] for layer in layers)),
            "moet_w2_bytes": _sums(layers),
            "moet_w2_redundant_bytes": document["redundant_gpu_w2_bytes"],
            "moet_w2_origin_layers": dict(Counter(layer["origin"] for layer in layers)),
            "moet_admission_tokens": found["max_model_len"],
            "moet_startup_phase_seconds": {
                name.replace(" ", "_").lower(): spent for name, spent in found["seconds"].items() if spent is not None
            },
            "moet_startup_seconds": found["seconds_since_process_start"],
        }
        if found["kv_cache_tokens"] is not None:
            self._fixed["moet_kv_cache_tokens"] = found["kv_cache_tokens"]
        if here.cache is not None:
            self._fixed["moet_cache_load_seconds"] = here.cache.seconds.get("planes", 0.0)

    def look(self, now: float) -> Snapshot:
        """The worker as it is.

        Args:
            now: Unix seconds.
        """
        values = self._fixed | self._counts() | self._correction()
        return Snapshot(self.rank, self.size, os.getpid(), self._ticks, now, self._info, values)

    def _counts(self) -> dict[str, Value]:
        steps, prompts = self.steps, self.steps.open
        counts: dict[str, Value] = {
            "moet_steps_total": steps.steps,
            "moet_last_step_timestamp_seconds": steps.last_unix,
        }
        if self.here.reads is not None:
            counts["moet_mapped_read_bytes_total"] = self.here.reads.look()
        if self.rank == 0:  # every rank is handed every request: a sum over ranks would count each several times
            counts |= {
                "moet_prefill_computed_tokens_total": steps.computed,
                "moet_prefill_cached_tokens_total": steps.cached,
                "moet_prefill_recomputed_tokens_total": steps.recomputed,
                "moet_prefill_requests": prompts.requests,
                "moet_prefill_remaining_tokens": prompts.left,
            }
        return counts

    def _correction(self) -> dict[str, Value]:
        tier = self.here.correction
        if tier is None:
            return {}
        look, facts = tier.metrics(), tier.facts()
        totals = look.totals
        return {
            "moet_correction_active": int(tier.manager is not None and tier.manager.works),
            "moet_correction_slots": look.slots,
            "moet_correction_pool_bytes": facts["bytes"],
            "moet_correction_resident_experts": look.resident,
            "moet_correction_routings_total": totals.routings,
            "moet_correction_hits_total": totals.hits,
            "moet_correction_promotions_total": totals.promotions,
            "moet_correction_evictions_total": totals.evictions,
            "moet_correction_read_bytes_total": totals.bytes_read,
            "moet_correction_read_errors_total": totals.read_errors,
            "moet_correction_passes_total": totals.windows,
            "moet_correction_failed_passes_total": totals.failures,
        }


def _sums(layers: list[dict]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for layer in layers:
        sums[layer["placement"]] += layer["bytes"]
    return dict(sums)
