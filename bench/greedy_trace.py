"""Whether tokens that a greedy decoder took are those that another engine would take, but for rounding.

A decoder that is right takes, after whatever came before, the token that the model holds for the likeliest. Kernels of
another batch shape round otherwise, and near a tie another token leads. So no answer is held against another answer,
whose contexts differ from the first difference on: every token of it is held against what the engine in question thinks
of it there. A token is *behind* by the nats that lie between it and the likeliest one.

Each token gets one word, the first that fits:

    first   it is the likeliest where the engine reads the whole answer as a prompt
    order   it is the likeliest in another shape in which the engine comes to the same place: the order of the two
            tokens changes between shapes of the engine itself
    spread  in the shape that favours it most it is behind by no more than the nats by which shapes differ about it:
            this is noise at this very place
    noise   it is behind by more than that spread in every shape, but in units of the spread (and of the typical one,
            which a place where shapes agree by chance has too: logits are bfloat16) by no more than :data:`SLACK`
            times one, or what the engine's own tokens are at worst
    wrong   none of these

The engine's own answers are traced in the same way, without the shape that they were made in: they are the noise floor.
Why not a bound on the nats: noise has a heavy tail (a router's near tie sends a token to another expert), so a bound
that the largest noise keeps would let nearly any token pass; noise at one place can be measured at that place. Why a
bound besides: five shapes do not show every rounding that a sixth may have, and some of the engine's own tokens look no
better. It is twice the worst of these, because of as many draws again the largest exceeds the first largest in every
second run.

What that lets pass one by one, it must not let pass often: tokens that are not *first* may not be more frequent than in
the engine's own answers (Fisher's exact test, :data:`RARE`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WORDS = ("first", "order", "spread", "noise", "wrong")
SLACK = 2.0
RARE = 1e-3
"""How unlikely a difference of frequencies is that is called a fault."""

Reader = Callable[[list[list[int]], list[list[int]]], list[list[float]]]
Stepper = Callable[[list[tuple[list[int], int]]], list[dict[str, tuple[float, bool]]]]


def trace(
    prompts: list[list[int]],
    answers: list[list[int]],
    read: Reader,
    step: Stepper,
    made_in: str | None = None,
    last: bool = False,
) -> dict[str, Any]:
    """What an engine thinks of every token of some answers, JSON-serialisable.

    Args:
        prompts, answers: token ids.
        read: nats behind of every token, as :func:`greedy_shapes.read`.
        step: nats behind in each shape, as :func:`greedy_shapes.step`; asked about what is not first by ``read``.
        made_in: the shape that the engine itself made the answers in, which is left out.
        last: look at the last token of each answer only.

    Returns:
        ``tokens``: how many were looked at; ``suspects``: for each that is not first its answer, position and
        token, by how many nats it is behind in each shape, and the shapes that list it too low to tell more
        than that it is behind by at least so many.
    """
    suspects, places, tokens = [], [], 0
    for number, (prompt, answer, behind) in enumerate(zip(prompts, answers, read(prompts, answers), strict=True)):
        positions = range(len(answer) - 1, len(answer)) if last else range(len(answer))
        tokens += len(positions)
        for position in positions:
            if behind[position] > 0:
                found = {"answer": number, "position": position, "token": answer[position]}
                suspects.append(found | {"behind": {"read": behind[position]}, "at_least": []})
                places.append((prompt + answer[:position], answer[position]))
    for suspect, shapes in zip(suspects, step(places) if places else [], strict=True):
        for shape, (nats, listed) in shapes.items():
            if shape != made_in:
                suspect["behind"][shape] = nats
                suspect["at_least"] += [] if listed else [shape]
    return {"tokens": tokens, "suspects": suspects}


@dataclass(frozen=True)
class Floor:
    """The noise floor, of traces of the engine's own answers.

    Attributes:
        typical: median spread, in nats, of places where shapes differ at all: at least a step of the logits there.
        most: of a token that is not wrong, :func:`multiple`.
    """

    typical: float
    most: float

    @classmethod
    def of(cls, own: list[dict[str, Any]], probes: dict[str, Any]) -> Floor:
        """The floor, whose noise counts at least once.

        Args:
            own: traces of the engine's own answers.
            probes: trace of tokens that the engine did not take, at places chosen at random. Without them a
                place would count only if noise has changed a token there.
        """
        suspects = [suspect for traced in own for suspect in traced["suspects"]]
        measured = [suspect for suspect in (*suspects, *probes["suspects"]) if _shapes(suspect) > 1]
        spreads = [nats for nats in map(spread, measured) if nats > 0]
        typical = statistics.median(spreads) if spreads else 0.0
        return cls(typical, SLACK * max([1.0, *(multiple(suspect, typical) for suspect in suspects)]))


def _shapes(suspect: dict[str, Any]) -> int:
    return len(suspect["behind"]) - len(suspect["at_least"])


def least(suspect: dict[str, Any]) -> float:
    """Nats behind in the shape that favours the token most."""
    return min(suspect["behind"].values())


def spread(suspect: dict[str, Any]) -> float:
    """Nats between the shapes that favour the token most and least; a shape that only tells a lower end is left out."""
    exact = [nats for shape, nats in suspect["behind"].items() if shape not in suspect["at_least"]]
    return max(exact) - min(exact)  # as read, it is always exact


def multiple(suspect: dict[str, Any], typical: float) -> float:
    """Nats behind in the shape that favours the token most, in units of noise at its place."""
    if least(suspect) <= 0:
        return 0.0
    unit = spread(suspect) + typical
    return least(suspect) / unit if unit else math.inf


def word(suspect: dict[str, Any], floor: Floor) -> str:
    """One of :data:`WORDS` but the first, for a token of :func:`trace` that is not first."""
    if least(suspect) <= 0:
        return "order"
    if least(suspect) <= spread(suspect):
        return "spread"
    return "noise" if multiple(suspect, floor.typical) <= floor.most else "wrong"


def words(traced: dict[str, Any], floor: Floor) -> dict[str, int]:
    """How many tokens got each of :data:`WORDS`."""
    found = Counter(word(suspect, floor) for suspect in traced["suspects"])
    found["first"] = traced["tokens"] - len(traced["suspects"])
    return {name: found[name] for name in WORDS}


def summary(traced: dict[str, Any], floor: Floor) -> dict[str, Any]:
    """Words, and quantiles of the nats that tokens which are not first are behind, where read and at best."""
    read = sorted(suspect["behind"]["read"] for suspect in traced["suspects"])
    best = sorted(least(suspect) for suspect in traced["suspects"])
    return {
        "tokens": traced["tokens"],
        "words": words(traced, floor),
        "nats_behind_as_read": quantiles(read),
        "nats_behind_in_the_best_shape": quantiles(best),
    }


def quantiles(ordered: list[float]) -> dict[str, float] | None:
    """Of values in order; None for none."""
    parts = {"median": 0.5, "p90": 0.9, "largest": 1.0}
    return {name: ordered[int(part * (len(ordered) - 1))] for name, part in parts.items()} if ordered else None


def chance(found: int, of: int, own: int, of_own: int) -> float:
    """Fisher's exact test: how likely at least ``found`` of ``of`` is, were it as frequent as ``own`` of ``of_own``."""
    marked = found + own

    def ways(count: int, among: int) -> float:
        """Logarithm of the binomial coefficient."""
        return math.lgamma(among + 1) - math.lgamma(count + 1) - math.lgamma(among - count + 1)

    counts = range(max(found, marked - of_own), min(of, marked) + 1)
    whole = ways(marked, of + of_own)
    return min(1.0, sum(math.exp(ways(n, of) + ways(marked - n, of_own) - whole) for n in counts))


def problems(traced: dict[str, Any], own: dict[str, Any], floor: Floor) -> list[str]:
    """One line for each token that is wrong, and one where tokens that are not first are too frequent.

    Args:
        traced: of the answers in question.
        own: of the engine's own answers, none of them twice.
        floor: of the engine.
    """
    found = []
    for suspect in traced["suspects"]:
        if word(suspect, floor) == "wrong":
            where = f"answer {suspect['answer']}, position {suspect['position']}"
            times = multiple(suspect, floor.typical)
            found.append(
                f"{where}: token {suspect['token']} is {least(suspect):.2f} nats behind in its best shape, "
                f"{times:.1f} times the noise there, at most {floor.most:.1f}"
            )
    count, own_count, tokens = len(traced["suspects"]), len(own["suspects"]), own["tokens"]
    if (likely := chance(count, traced["tokens"], own_count, tokens)) < RARE:
        found.append(
            f"{count} of {traced['tokens']} tokens are not the likeliest, of the engine's own {own_count} of {tokens}: "
            f"chance does that in {likely:.1e} of cases, at least {RARE} is asked"
        )
    return found
