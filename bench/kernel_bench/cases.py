"""Random cases for the kernels: the same ones for the same seed, everywhere."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from moet_w2.geometry import LayerGeometry

TINY = (
    LayerGeometry(experts=64, hidden=256, width=128),
    LayerGeometry(experts=64, hidden=256, width=256),
    LayerGeometry(experts=256, hidden=256, width=128),
)
REAL = (
    # One, two and four tensor-parallel ranks of the real layer, with few experts to keep the reference quick.
    LayerGeometry(experts=8, hidden=4096, width=2048),
    LayerGeometry(experts=8, hidden=4096, width=1024),
    LayerGeometry(experts=16, hidden=4096, width=512),
    LayerGeometry(experts=256, hidden=4096, width=512),
)
TIERS = ("base", "fp4", "mixed")
ROUTINGS = ("uniform", "skewed", "one", "gap", "negative", "padding")
LIMITS = (10.0, None)
# Ends and middles of every class of token counts that a kernel is chosen by.
TOKENS = ((1, 8), (9, 16), (17, 32), (33, 64), (65, 512), (513, 2048), (2049, 8192))
_SHARES = (30, 12, 12, 12, 16, 10, 8)
MAX_ROUTES = 65535  # of one call


@dataclass(frozen=True)
class Case:
    """One call of the kernels.

    Attributes:
        number: index in its list, also the seed of its inputs.
        geometry: experts, hidden, width.
        tokens: rows of the batch.
        top_k: experts a token is routed to.
        tier: ``base``: every expert from planes; ``fp4``: every expert from its correction row; ``mixed``: by a slot
            table that holds about half of them.
        routing: ``uniform``; ``skewed``: expert e about 1 / (e + 1) as often as expert 0; ``one``: every token takes
            expert 0; ``gap``: odd experts get nothing; ``negative``: a third of the ids are -1, and all of the first
            token's; ``padding``: a third of the rows are padding and hold NaN.
        limit: SwiGLU clamp.
        x_scale: standard deviation of the activations; the largest drives many gates beyond the clamp.
    """

    number: int
    geometry: LayerGeometry
    tokens: int
    top_k: int
    tier: str
    routing: str
    limit: float | None
    x_scale: float

    def __str__(self) -> str:
        g = self.geometry
        shape = f"{self.number}-E{g.experts}-H{g.hidden}-I{g.width}-T{self.tokens}-k{self.top_k}"
        return f"{shape}-{self.tier}-{self.routing}-limit{self.limit}"


@dataclass(frozen=True)
class Inputs:
    """A case's tensors: x bfloat16 ``[T, H]``, weights float32 ``[T, k]``, ids int32 ``[T, k]``, padding bool ``[T]``
    or None, slots int32 ``[E]`` or None."""

    x: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    padding: torch.Tensor | None
    slots: torch.Tensor | None

    def to(self, device: str) -> Inputs:
        return Inputs(*(None if t is None else t.to(device) for t in vars(self).values()))

    @property
    def valid(self) -> torch.Tensor:
        """bool ``[T, k]``: routes that count."""
        valid = self.ids >= 0
        return valid if self.padding is None else valid & ~self.padding.unsqueeze(-1)


def generate(count: int, seed: int = 0) -> list[Case]:
    """``count`` cases, those of one geometry next to each other so that its weights are made once."""
    draw = random.Random(seed)
    cases = [_draw(draw) for _ in range(count)]
    order = {geometry: number for number, geometry in enumerate(TINY + REAL)}
    cases.sort(key=lambda case: order[case.geometry])
    return [replace(case, number=number) for number, case in enumerate(cases)]


def _draw(draw: random.Random) -> Case:
    if draw.random() < 0.55:
        geometry = draw.choice(TINY)
    else:
        geometry = draw.choices(REAL, (3, 3, 3, 1))[0]
    low, high = draw.choices(TOKENS, _SHARES)[0]
    tokens = draw.choice((low, high, draw.randint(low, high)))
    top_k = draw.choices((6, 8, 2, 1), (8, 2, 1, 1))[0]
    if tokens <= 8 and geometry in TINY:
        # The inner activation is rounded to bfloat16, and with a handful of inner values the rounding of the largest
        # is the error of the whole: averages need routes, or width.
        top_k = 6
    return Case(
        0,
        geometry,
        min(tokens, MAX_ROUTES // top_k),
        top_k,
        draw.choice(TIERS),
        draw.choices(ROUTINGS, (3, 2, 1, 1, 1, 1))[0],
        draw.choices(LIMITS, (3, 1))[0],
        draw.choice((0.02, 0.1, 0.5)),
    )


def smoke() -> list[Case]:
    """A small set for slow checkers: every kernel, every class of token counts, both tiers and both at once."""
    geometry = LayerGeometry(experts=16, hidden=256, width=256)
    kinds = [(tokens, tier) for tokens in (1, 5, 13, 29, 61, 66, 515) for tier in TIERS]
    return [
        Case(number, geometry, tokens, 6, tier, ROUTINGS[number % len(ROUTINGS)], 10.0, 0.1)
        for number, (tokens, tier) in enumerate(kinds)
    ]


def inputs(case: Case) -> Inputs:
    """The case's tensors, on the CPU."""
    made = torch.Generator().manual_seed(case.number)
    experts, tokens, k = case.geometry.experts, case.tokens, case.top_k
    x = torch.randn(tokens, case.geometry.hidden, generator=made).mul_(case.x_scale).bfloat16()
    ids = choose(case.routing, tokens, experts, k, made)
    weights = torch.rand(tokens, k, generator=made) + 0.05
    weights *= 1.5 / weights.sum(-1, keepdim=True)
    padding = None
    if case.routing == "padding":
        padding = torch.rand(tokens, generator=made) < 1 / 3
        x[padding] = float("nan")
    slots = None
    if case.tier != "base":
        slots = torch.randperm(experts, generator=made).int()
        if case.tier == "mixed":
            slots[torch.rand(experts, generator=made) < 0.5] = -1
    return Inputs(x, weights, ids, padding, slots)


def choose(routing: str, tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
    """int32 ``[tokens, top_k]``: different experts for each token, or -1."""
    odds = torch.ones(experts)
    if routing == "skewed":
        odds = 1 / torch.arange(1, experts + 1)
    elif routing == "gap":
        odds[1::2] = 0
    if routing == "one":
        odds[0] = 0
    # Numbers with exponential odds, sorted, are a draw without repetition (Efraimidis and Spirakis, 2006).
    keys = torch.rand(tokens, experts, generator=generator).clamp_(min=1e-12).log_() / odds
    ids = keys.topk(min(top_k, int((odds > 0).sum())), dim=-1).indices.int()
    if ids.shape[1] < top_k:
        ids = torch.cat([ids, ids.new_full((tokens, top_k - ids.shape[1]), -1)], dim=1)
    if routing == "one":
        ids[:, 0] = 0
    elif routing == "negative":
        ids[torch.rand(tokens, top_k, generator=generator) < 1 / 3] = -1
        ids[0] = -1
    return ids
