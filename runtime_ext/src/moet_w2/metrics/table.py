"""Every metric that this package exports, with its help text: the one source of the collector and of docs/metrics.md.

Names follow Prometheus' rules: base units, ``_total`` for counters (https://prometheus.io/docs/practices/naming/).
vLLM unregisters collectors whose name begins with ``vllm:``, so ours do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus' type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as a scrape shows it.
        kind: its type.
        help: what it counts; one sentence or two.
        label: the label that it has beside ``rank``, or None.
    """

    name: str
    kind: Kind
    help: str
    label: str | None = None


def _gauge(name: str, text: str, label: str | None = None) -> Metric:
    return Metric(name, Kind.GAUGE, text, label)


def _counter(name: str, text: str) -> Metric:
    return Metric(name, Kind.COUNTER, text)


WORKERS_EXPECTED = _gauge(
    "moet_workers_expected", "Worker processes that should report; 0 while none has, or where W2 is not served."
)
WORKER_UP = _gauge(
    "moet_worker_up", "1 if the worker process lives and its snapshot is fresh; 0 if not, and then nothing else of it."
)
SNAPSHOT_AGE = _gauge("moet_snapshot_age_seconds", "Age of the worker's last snapshot, which it writes every second.")
WORKER_INFO = _gauge("moet_worker_info", "Always 1; its labels say what serves: profile, device, kernels, policy.")
INFO_LABELS = ("profile", "device", "kernels", "policy")
"""Labels of :data:`WORKER_INFO` beside ``rank``."""

OF_COLLECTOR = (WORKERS_EXPECTED, WORKER_UP, SNAPSHOT_AGE, WORKER_INFO)
"""What the collector itself makes; ``moet_workers_expected`` is the only one without ``rank``."""

OF_SNAPSHOT = (
    _gauge("moet_worker_start_time_seconds", "Unix time at which the worker process began."),
    _gauge("moet_w2_layers", "W2 layers by the memory that holds them: device or mapped.", "placement"),
    _gauge("moet_w2_bytes", "Bytes of 2-bit planes and scales by the memory that holds them.", "placement"),
    _gauge("moet_w2_redundant_bytes", "Bytes of W2 layers that were found twice after loading; 0 or the start ends."),
    _gauge("moet_w2_origin_layers", "W2 layers by where their bytes are from: cache, checkpoint, synthetic.", "origin"),
    _gauge("moet_admission_tokens", "Longest request that is admitted, as configured (max-model-len)."),
    _gauge("moet_kv_cache_tokens", "Tokens that the KV cache holds, by vLLM's own count."),
    _gauge("moet_startup_phase_seconds", "Seconds of each phase of the worker's start that happened.", "phase"),
    _gauge("moet_startup_seconds", "Seconds from the worker process's beginning until it could serve."),
    _gauge("moet_cache_load_seconds", "Seconds spent reading ready planes from the cache; absent without one."),
    _gauge("moet_correction_active", "1 while the correction's manager runs, 0 if not; absent without correction."),
    _gauge("moet_correction_slots", "FP4 slots in the correction pool."),
    _gauge("moet_correction_pool_bytes", "Bytes of the correction pool on the device."),
    _gauge("moet_correction_resident_experts", "Experts that hold a slot."),
    _counter("moet_correction_routings_total", "Routings of correctable layers that were counted."),
    _counter("moet_correction_hits_total", "Those routings whose expert held a slot; over routings: the hit rate."),
    _counter("moet_correction_promotions_total", "Rows copied from the pack to a slot."),
    _counter("moet_correction_evictions_total", "Experts that were told to leave a slot."),
    _counter("moet_correction_read_bytes_total", "Bytes of the rows read from the pack for promotions."),
    _counter("moet_correction_read_errors_total", "Rows that could not be read or were not what the pack vouches for."),
    _counter("moet_correction_passes_total", "Windows of counts that the manager worked on."),
    _counter("moet_correction_failed_passes_total", "Passes of the manager that ended in an error; experts stay put."),
    _counter("moet_steps_total", "Steps with tokens that the worker was handed since it could serve."),
    _gauge("moet_last_step_timestamp_seconds", "Unix time at which the worker was handed its last step; 0 before any."),
    _counter(
        "moet_prefill_computed_tokens_total",
        "Prompt tokens handed to the model, step by step, so also during a long prefill; cached ones are not in it.",
    ),
    _counter(
        "moet_prefill_cached_tokens_total", "Prompt tokens taken from the prefix cache, when the request is scheduled."
    ),
    _counter(
        "moet_prefill_recomputed_tokens_total",
        "The part of the computed tokens that belongs to requests which were preempted and started again.",
    ),
    _gauge("moet_prefill_requests", "Requests whose prompt is being computed."),
    _gauge("moet_prefill_remaining_tokens", "Prompt tokens of those requests that are still to be handed over."),
    _counter(
        "moet_mapped_read_bytes_total",
        "Bytes of experts that were read from mapped layers (over PCIe on a GPU), as the calls counted them; of an "
        "expert in a correction slot its scales alone.",
    ),
)
"""What workers report."""

METRICS = OF_COLLECTOR + OF_SNAPSHOT
