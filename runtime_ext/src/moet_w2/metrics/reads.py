"""What steps read from mapped layers: counted where experts are chosen, fetched beside the steps.

    a call of a mapped layer     adds to two words of the device's memory, in the order of steps; their address is fixed
                                 from the start, so that captured graphs may add to them
    reporter's thread            at each look copies all words by a stream of its own to pinned memory; no step waits
                                 for the copy and the copy waits for no step. It begins when all graphs are captured:
                                 CUDA lets no other thread ask for an event meanwhile

A word may be one call ahead of another. Sums only grow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ..correction import transfer
from ..correction.transfer import Mark, Transfer
from ..geometry import LayerGeometry

_PATIENCE_SECONDS = 0.5
"""A copy takes some microseconds. Where it is not there after this long the device hangs, and the thread must not."""
_POLL_SECONDS = 0.0005


class MappedReads:
    """Counters of a worker's mapped layers.

    Attributes:
        counts: int64 ``[mapped layers, 2]`` on the device: how often an expert was read with its planes, and how often
            its scales alone, because its codes came from a correction slot.
    """

    def __init__(self, mapped: Sequence[int], device: torch.device, copies: Transfer | None = None) -> None:
        """Allocate.

        Args:
            mapped: keys of the mapped layers.
            device: what computes.
            copies: the device's copies; default: those of :func:`moet_w2.correction.transfer.of`.
        """
        self._copies = copies or transfer.of(device)
        self._rows = {key: row for row, key in enumerate(mapped)}
        self._costs = torch.zeros(len(mapped), 2, dtype=torch.int64, device="cpu")
        self.counts = torch.zeros(len(mapped), 2, dtype=torch.int64, device=device)
        self._buffer = self._copies.buffer(len(mapped), 2, dtype=torch.int64)
        self._copied: Mark | None = None
        self._bytes = 0

    def words(self, key: int, geometry: LayerGeometry) -> torch.Tensor:
        """int64 ``[2]``: where calls of a layer count, a view of ``counts``."""
        row = self._rows[key]
        self._costs[row] = torch.tensor([geometry.expert_bytes, geometry.scale_row_bytes], device="cpu")
        return self.counts[row]

    def begin(self) -> None:
        """Start at zero: what warm-up and capture read is not counted. Waits for the device."""
        self.counts.zero_()
        self._copies.mark().wait()

    def look(self) -> int:
        """Bytes read since :meth:`begin`; for one thread. What it last knew, where the device does not answer."""
        if self._copied is None:
            self._copies.enter_thread()
            self._copied = self._copies.peek(self._buffer, self.counts)
        until = time.monotonic() + _PATIENCE_SECONDS
        while not self._copied.done():
            if time.monotonic() > until:
                return self._bytes
            time.sleep(_POLL_SECONDS)
        self._copied = None
        self._bytes = int((self._buffer * self._costs).sum())
        return self._bytes


def count(words: torch.Tensor, ids: torch.Tensor, slots: torch.Tensor | None) -> None:
    """Count a call of :func:`moet_w2.reference.moe`, which reads each expert that it routes to once.

    Args:
        words: int64 ``[2]``, of :meth:`MappedReads.words`.
        ids: integer ``[T, k]``; negative ones route nowhere.
        slots: int32 ``[E]``, slot of each expert or -1; None where no expert is corrected.
    """
    experts = torch.unique(ids[ids >= 0]).long()
    corrected = 0 if slots is None else int((slots[experts] >= 0).sum())
    words += torch.tensor([len(experts) - corrected, corrected])
