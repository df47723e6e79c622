"""The collector in the API process: a scrape reads the workers' snapshots, nothing is kept between two."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..errors import UnsupportedError
from . import folder, snapshot, table
from .snapshot import Snapshot
from .table import Kind, Metric

Family = CounterMetricFamily | GaugeMetricFamily


class Collector:
    """Gives Prometheus what the workers left in a folder.

    A worker that is dead or does not report any more gives ``moet_worker_up 0`` and the age of what it wrote last;
    its other metrics end, so that nothing of it is taken for alive. A worker that never reported gives the former.
    """

    def __init__(self, place: Path) -> None:
        self.folder = place

    def describe(self) -> Iterator[Family]:
        """Names and types, without a look at the folder."""
        return map(_family, table.METRICS)

    def collect(self) -> Iterator[Family]:
        """Every metric that has a value now."""
        now, found = time.time(), snapshot.read(self.folder)
        alive = {rank: look for rank, look in found.items() if look.up(now)}
        newest = max(found.values(), key=lambda look: look.written_unix, default=None)
        expected = newest.size if newest else 0
        yield _filled(table.WORKERS_EXPECTED, [([], expected)])
        ranks = sorted(range(expected))
        yield _filled(table.WORKER_UP, [([str(rank)], int(rank in alive)) for rank in ranks])
        yield _filled(table.SNAPSHOT_AGE, [([str(rank)], found[rank].age(now)) for rank in ranks if rank in found])
        infos = [([str(rank), *_texts(look)], 1) for rank, look in alive.items()]
        yield _filled(table.WORKER_INFO, infos)
        for metric in table.OF_SNAPSHOT:
            yield _filled(metric, [sample for look in alive.values() for sample in _samples(metric, look)])


_attached: Collector | None = None


def attach() -> None:
    """Have vLLM's ``/metrics`` show this server's workers; once for a process.

    Raises:
        UnsupportedError: vLLM does not say where its registry comes from.
    """
    global _attached
    if _attached is not None:
        return
    from vllm.v1.metrics import prometheus

    if not callable(getattr(prometheus, "get_prometheus_registry", None)):
        raise UnsupportedError("vLLM's /metrics has no registry that is asked for; this vLLM is not the pinned one")
    collector = Collector(folder.announce())
    REGISTRY.register(collector)
    _join_other_registries(prometheus, collector)
    _attached = collector


def _join_other_registries(prometheus: Any, collector: Collector) -> None:
    """With PROMETHEUS_MULTIPROC_DIR (several API servers) vLLM shows a registry of its own, made when it is asked."""
    import sys

    original = prometheus.get_prometheus_registry

    @functools.wraps(original)
    def get_prometheus_registry() -> CollectorRegistry:
        registry = original()
        if registry is not REGISTRY:
            registry.register(collector)
        return registry

    prometheus.get_prometheus_registry = get_prometheus_registry
    for name in ("vllm.entrypoints.serve.instrumentator.metrics",):
        if name in sys.modules:  # it has taken the function by its name already
            sys.modules[name].get_prometheus_registry = get_prometheus_registry  # type: ignore[attr-defined]


def _labels(metric: Metric) -> list[str]:
    if metric is table.WORKERS_EXPECTED:
        return []
    if metric is table.WORKER_INFO:
        return ["rank", *table.INFO_LABELS]
    return ["rank", *([metric.label] if metric.label else [])]


def _family(metric: Metric) -> Family:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(metric.name.removesuffix("_total"), metric.help, labels=_labels(metric))


def _filled(metric: Metric, samples: list[tuple[list[str], float]]) -> Family:
    family = _family(metric)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _texts(look: Snapshot) -> list[str]:
    return [str(look.info.get(label, "")) for label in table.INFO_LABELS]


def _samples(metric: Metric, look: Snapshot) -> list[tuple[list[str], float]]:
    value = look.values.get(metric.name)
    if value is None:
        return []
    rank = str(look.rank)
    if metric.label is None:
        return [([rank], float(value))]  # type: ignore[arg-type]
    return [([rank, label], number) for label, number in value.items()]  # type: ignore[union-attr]
