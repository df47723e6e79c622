"""A scrape of a server's /metrics, parsed as Prometheus does."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

PROMPT_SERIES = {
    "moet_prefill_computed_tokens_total": ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}),
    "moet_prefill_cached_tokens_total": ("vllm:prompt_tokens_cached_total", {}),
}
"""Ours -> vLLM's counter of the same tokens, which moves when a prompt's first token comes out."""


@dataclass(frozen=True)
class Scrape:
    """Every sample of one scrape: (name, labels, value)."""

    samples: tuple[tuple[str, dict[str, str], float], ...]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name that has these labels among its own.

        Raises:
            LookupError: there is none, or more than one.
        """
        found = [value for other, has, value in self.samples if other == name and labels.items() <= has.items()]
        if len(found) != 1:
            raise LookupError(f"{len(found)} samples of {name} {labels}")
        return found[0]

    def labels(self, name: str) -> dict[str, str]:
        """Labels of the first sample of this name."""
        return next(has for other, has, _ in self.samples if other == name)


def scrape(url: str) -> Scrape:
    """Ask a server once."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return Scrape(tuple((s.name, dict(s.labels), s.value) for family in families for s in family.samples))


def scrape_until(url: str, holds: Callable[[Scrape], bool], seconds: float = 20.0) -> Scrape:
    """Ask until something holds, or the time is over; the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        found = scrape(url)
        if holds(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def prompt_tokens(found: Scrape) -> dict[str, tuple[float, float]]:
    """Ours -> (our count, vLLM's count) of prompt tokens."""
    return {ours: (found.value(ours), found.value(name, **has)) for ours, (name, has) in PROMPT_SERIES.items()}
