"""How many bytes a step reads from mapped layers: an estimate, since the exact number is only on the device.

A layer's call over T tokens with k of E experts each reads every expert that at least one token chose, once. Which
ones is decided on the device, inside graphs; fetching it would make each step wait. Were all experts alike likely, the
expected number of distinct ones would be

    E (1 - (1 - k / E)^T)

It is k at T = 1, where it is exact, and comes close to E in prefill. Routing that prefers some experts reads fewer, so
over many steps this is more than is read, never less. What it leaves out: correctable experts in a slot (their FP4
codes come from the device, the scales still from the layer), and prefill calls that read an expert of more than 64
tokens once more for each further 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class MappedReads:
    """What a step's reads are made of.

    Attributes:
        target_bytes: bytes of all experts of all mapped target layers.
        draft_bytes: the same of mapped draft layers.
        experts, top_k: E and k.
        draft_tokens: tokens that the draft model computes for each request of a step.
    """

    target_bytes: int
    draft_bytes: int
    experts: int
    top_k: int
    draft_tokens: int = 0

    def of_step(self, tokens: int, requests: int) -> float:
        """Bytes that a step is estimated to read.

        Args:
            tokens: rows of the target model's calls.
            requests: requests in the step, for each of which the draft model runs.
        """
        read = self.target_bytes * share(self.experts, self.top_k, tokens)
        if self.draft_bytes:
            read += self.draft_bytes * share(self.experts, self.top_k, requests * self.draft_tokens)
        return read


@cache
def share(experts: int, top_k: int, tokens: int) -> float:
    """Expected share of a layer's experts that some token of a call chose, all alike likely."""
    return 1.0 - (1.0 - top_k / experts) ** tokens
