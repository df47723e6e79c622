"""What tables, plots and comparisons take from a serving result: each figure by one name, None where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .library import Result

_DECODE = re.compile(r"decode_(\d+)x(\d+)")
_PREFILL = re.compile(r"prefill_(\d+)")
_QUERIES, _HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


@dataclass(frozen=True)
class Served:
    """One configuration that was served."""

    result: Result

    @property
    def document(self) -> dict[str, Any]:
        return self.result.document

    @property
    def name(self) -> str:
        return self.document["configuration"]

    @property
    def mapped(self) -> int:
        """Number of mapped layers."""
        return len(self.document["configured"]["mapped_layers"])

    @property
    def kv_tokens(self) -> int | None:
        return self.document["reported"]["kv_cache_tokens"]

    def decodes(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(requests, tokens, phase) of each decode phase that succeeded."""
        for name, phase in self.document["phases"].items():
            if (found := _DECODE.fullmatch(name)) and "client" in phase:
                yield int(found[1]), int(found[2]), phase

    def decode(self, requests: int) -> dict[str, Any] | None:
        """The longest decode phase with so many requests."""
        return max(
            ((tokens, phase) for many, tokens, phase in self.decodes() if many == requests),
            key=lambda found: found[0],
            default=(0, None),
        )[1]

    def longest_prefill(self) -> dict[str, Any] | None:
        """The phase of the longest uncached prompt."""
        found = {
            int(match[1]): phase
            for name, phase in self.document["phases"].items()
            if (match := _PREFILL.fullmatch(name)) and "client" in phase
        }
        return found[max(found)] if found else None

    def failed_prefill(self) -> int | None:
        """Tokens of the shortest uncached prompt that was sent and not answered."""
        phases = self.document["phases"].items()
        sent = (int(found[1]) for name, phase in phases if "error" in phase and (found := _PREFILL.fullmatch(name)))
        return min(sent, default=None)

    def failed_decode(self, requests: int) -> bool:
        """Whether a decode phase with so many requests failed."""
        phases = self.document["phases"].items()
        return any(
            "error" in phase and (found := _DECODE.fullmatch(name)) and int(found[1]) == requests
            for name, phase in phases
        )

    def own_gib(self) -> float | None:
        """GiB of the card's memory that the server had at most once it was ready; None where it was not sampled."""
        marks = self.document.get("own_gpu_memory_mib", {})
        later = [mark["now" if moment == "ready" else "most"] for moment, mark in marks.items()]
        return max(later) / 1024 if later else None

    def repeated(self) -> dict[str, Any] | None:
        """The phase that sends a prompt once more."""
        phases = self.document["phases"].items()
        return next((phase for name, phase in phases if name.startswith("repeated_") and "client" in phase), None)

    def start(self) -> list[tuple[str, float]]:
        """Phases of the start that took any time, with their seconds, in order; the last one is what is left of it."""
        serving = self.document["audit"].get("serving") or {}
        seconds = [(name, spent) for name, spent in (serving.get("seconds") or {}).items() if spent and spent > 0.01]
        rest = self.document["ready_seconds"] - sum(spent for _, spent in seconds)
        return [*seconds, ("imports, engine, API", max(rest, 0.0))]


def all_of(results: list[Result]) -> list[Served]:
    """Those that ended well, in order of their mapped layers."""
    served = [Served(result) for result in results if "error" not in result.document]
    return sorted(served, key=lambda one: (one.result.hardware["gpu"] is None, one.mapped, one.name))


def prefix_hit_rate(phase: dict[str, Any]) -> float | None:
    """Share of a phase's prompt tokens that the prefix cache gave, by vLLM's counters."""
    queries = phase["counters"].get(_QUERIES)
    return phase["counters"].get(_HITS, 0.0) / queries if queries else None


def gauge(phase: dict[str, Any], name: str) -> float | None:
    """Mean of what NVML sampled during a phase."""
    found = (phase.get("gpu") or {}).get(name)
    return found["mean"] if found else None
