"""The real layer and the calls that are timed: the same tokens and routing for every kernel that is compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from moet_w2.geometry import LayerGeometry
from moet_w2.kernels.call import Call

from . import cases, chain
from .chain import Chain, Find, committed

LAYER = LayerGeometry(experts=256, hidden=4096, width=2048)
TOP_K = 6
LIMIT = 10.0
TOKENS = (1, 2, 4, 5, 8, 16, 32, 64, 256, 2048)
LAYERS = 4
"""Layers that calls rotate over; 1.81 GB each, many times any second-level cache."""
SCALE_BYTES = (110, 126)
_ROTATION = 2 << 30  # bytes of weights, at least, from one call of a graph to the same call in the next replay
_MOST_CALLS = 64


class Batch(NamedTuple):
    """One call's x bfloat16 ``[T, H]``, weights float32 and ids int32 ``[T, 6]``."""

    x: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor


def batch(tokens: int, number: int, device: str) -> Batch:
    """Call ``number`` of those that are timed at a token count: uniform routing, the same on every run."""
    made = torch.Generator().manual_seed(tokens * 1000 + number)
    x = torch.randn(tokens, LAYER.hidden, generator=made).bfloat16()
    ids = cases.choose("uniform", tokens, LAYER.experts, TOP_K, made)
    weights = torch.rand(tokens, TOP_K, generator=made) + 0.05
    weights *= 1.5 / weights.sum(-1, keepdim=True)
    return Batch(x.to(device), weights.to(device), ids.to(device))


def calls(nbytes: int) -> int:
    """How many calls, each of ``nbytes`` of weights, one graph holds so that nothing is read from a cache."""
    return max(LAYERS, min(_MOST_CALLS, -(-_ROTATION // nbytes)))


def random_layers(count: int = LAYERS) -> list[torch.Tensor]:
    """Layers of random planes and scales, uint8 ``[LAYER.nbytes]`` each."""
    made = torch.Generator(device=chain.DEVICE).manual_seed(0)
    return [fill(torch.empty(LAYER.nbytes, dtype=torch.uint8, device=chain.DEVICE), made) for _ in range(count)]


def fill(layer: torch.Tensor, made: torch.Generator) -> torch.Tensor:
    """Random planes and scales, written in place; ``layer``."""
    layer.random_(0, 256, generator=made)
    for name in ("sc13", "sc2"):
        part = LAYER.parts[name]
        layer[part.offset : part.offset + part.nbytes].random_(*SCALE_BYTES, generator=made)
    return layer


def random_rows() -> torch.Tensor:
    """A random correction row for every expert, uint8 ``[E, row_bytes]``."""
    rows = torch.empty(LAYER.experts, LAYER.correction_row_bytes, dtype=torch.uint8, device=chain.DEVICE)
    return rows.random_(0, 256, generator=torch.Generator(device=chain.DEVICE).manual_seed(1))


def chains(
    tokens: int,
    layers: list[torch.Tensor],
    rows: torch.Tensor | None = None,
    find: Find = committed,
    count: int | None = None,
) -> list[Chain]:
    """The calls of one token count, each over the next layer, enough of them that no weight stays in a cache.

    Args:
        tokens: T.
        layers: storages to rotate over.
        rows: every expert from its correction row, or None for planes.
        find: where kernels come from.
        count: calls, or None to choose.
    """
    slots = None if rows is None else torch.arange(LAYER.experts, dtype=torch.int32, device=rows.device)
    if count is None:
        row_bytes = LAYER.correction_row_bytes if rows is not None else LAYER.nbytes // LAYER.experts
        count = calls(min(tokens * TOP_K, LAYER.experts) * row_bytes * 2 // 3)
    return list(_chains(tokens, layers, rows, slots, find, count))


def _chains(
    tokens: int,
    layers: list[torch.Tensor],
    rows: torch.Tensor | None,
    slots: torch.Tensor | None,
    find: Find,
    count: int,
) -> Iterator[Chain]:
    for number in range(count):
        x, weights, ids = batch(tokens, number, layers[0].device.type)
        storage = layers[number % len(layers)]
        yield Chain(Call(x, weights, ids, storage, LAYER.experts, LAYER.width, LIMIT, rows, slots), find)
