"""Wrong tokens planted into right answers, to show what a check of greedy decoding finds.

What a speculator that accepts too much would let through, from hard to see to easy:

    second   the second likeliest token
    follows  the token whose number follows that of the one before: what the draft's Markov head proposes in a model of
             made-up weights (:mod:`moet_w2.synthetic_dense`)
    random   any token

An answer ends with the planted token: what the engine would have said after it is not known.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import greedy_trace
from greedy_trace import Floor

KINDS = ("second", "follows", "random")
LEAST_FOUND = 0.9
"""Of the random ones: a check that misses more is blind."""


def plant(answers: list[dict[str, Any]], vocabulary: int, seed: int) -> list[dict[str, Any]]:
    """One wrong token for each answer, the kinds in turn.

    Args:
        answers: tokens, and for each log-probabilities of the likeliest ones by token.
        vocabulary: number of tokens.
        seed: of the places and of random tokens.

    Returns:
        for each its answer, kind, and the tokens up to and with the planted one. An answer in which every token
        is the one that follows has no place for that kind, and is left out.
    """
    noise, planted = random.Random(seed), []
    for number, answer in enumerate(answers):
        kind, tokens = KINDS[number % len(KINDS)], answer["tokens"]
        fitting = range(1, len(tokens))
        if kind == "follows":
            fitting = [place for place in fitting if tokens[place] != tokens[place - 1] + 1]
        if not fitting:
            continue
        place = noise.choice(fitting)
        if kind == "second":
            others = {int(token): value for token, value in answer["logprobs"][place].items()}
            others.pop(tokens[place])
            wrong = max(others, key=others.__getitem__)
        elif kind == "follows":
            wrong = (tokens[place - 1] + 1) % vocabulary
        else:
            wrong = (tokens[place] + noise.randrange(1, vocabulary)) % vocabulary
        planted.append({"answer": number, "kind": kind, "tokens": [*tokens[:place], wrong]})
    return planted


def found(planted: list[dict[str, Any]], traced: dict[str, Any], floor: Floor) -> dict[str, dict[str, Any]]:
    """For each kind how many were planted, how many are called wrong, and what the others are called.

    Args:
        planted: of :func:`plant`.
        traced: :func:`greedy_trace.trace` of their last tokens.
        floor: of the engine's own answers.
    """
    called = {suspect["answer"]: greedy_trace.word(suspect, floor) for suspect in traced["suspects"]}
    words = {kind: Counter() for kind in KINDS}
    for number, one in enumerate(planted):
        words[one["kind"]][called.get(number, "first")] += 1
    return {
        kind: {"planted": sum(counted.values()), "found": counted["wrong"], "words": dict(counted)}
        for kind, counted in words.items()
    }


def problems(counted: dict[str, dict[str, Any]]) -> list[str]:
    """A line if too few of those that anything should find are found."""
    planted, wrong = (counted["random"][name] for name in ("planted", "found"))
    if wrong < LEAST_FOUND * planted or not planted:
        return [f"the check finds {wrong} of {planted} random tokens planted, at least {LEAST_FOUND:.0%} asked"]
    return []
