"""A prompt of an exact length, by the server's own rendering, with a sentence at an exact token of it.

    user message:  filler, pads | needle | filler, pads | question
                                ^ position, counted in the rendered prompt from 0

Sentences of filler bring a text near to its length; pads, each one token long where they stand, bring it there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

from validation.core import digest
from validation.core.errors import Refusal
from validation.core.wire import Server

ROUNDS = 12
OTHER = "#"
"""Stands where the needle will, to see at which token the two part."""


@dataclass(frozen=True)
class Shape:
    """What a prompt is made of, so that it can be made again without a server.

    Attributes:
        before, after: sentences of filler before and after the needle.
        pads_before, pads_after: pads at the end of each filler.
        pad: the pad.
    """

    before: int = 0
    pads_before: int = 0
    after: int = 0
    pads_after: int = 0
    pad: str = " a"


@dataclass(frozen=True)
class Text:
    """The words of a case: ``filler`` is drawn from by ``seed``."""

    filler: tuple[str, ...]
    needle: str
    question: str
    seed: int

    def content(self, shape: Shape, needle: str | None = None) -> str:
        """The user message."""
        before = _drawn(self.filler, f"before {self.seed}", shape.before) + shape.pad * shape.pads_before
        after = _drawn(self.filler, f"after {self.seed}", shape.after) + shape.pad * shape.pads_after
        parts = (before, self.needle if needle is None else needle, after, self.question)
        return "\n".join(part for part in parts if part)


def _drawn(filler: tuple[str, ...], seed: str, count: int) -> str:
    return " ".join(random.Random(seed).choices(filler, k=count)) if count else ""


class Builder:
    """Finds the shape that gives a wanted length and position.

    Args:
        render: the rendered prompt of a user message, as token ids.
        text: the words.
        pads: candidates for the pad, the best first.
    """

    def __init__(self, render: Callable[[str], list[int]], text: Text, pads: tuple[str, ...]) -> None:
        self.render, self.text, self.pads = render, text, pads

    def build(self, tokens: int, position: int) -> dict[str, Any]:
        """The shape, and what the server says of it.

        Raises:
            Refusal: no shape found gives exactly this.
        """
        for pad in self.pads:
            shape = self._reached(Shape(pad=pad), "before", self._position, position)
            shape = shape and self._reached(shape, "after", self._length, tokens)
            if shape is not None:
                content = self.text.content(shape)
                return {
                    "shape": asdict(shape),
                    "tokens": self._length(shape),
                    "position": self._position(shape),
                    "characters": len(content),
                    "sha256": digest.of_text(content),
                }
        raise Refusal(
            f"no prompt of {tokens} tokens with the needle at {position} was found; choose a longer one, another "
            "position, or other pads in the case file"
        )

    def _length(self, shape: Shape) -> int:
        return len(self.render(self.text.content(shape)))

    def _position(self, shape: Shape) -> int:
        """The first token that is another one when another word stands in the needle's place."""
        pairs = zip(*(self.render(self.text.content(shape, needle)) for needle in (None, OTHER)), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _reached(self, shape: Shape, part: str, measure: Callable[[Shape], int], wanted: int) -> Shape | None:
        """Fill one part until ``measure`` gives ``wanted``, or None where this pad does not get there."""
        per_sentence = max(1.0, (measure(replace(shape, **{part: 64})) - measure(shape)) / 64)
        count, seen = 0, set[int]()
        for _ in range(ROUNDS):
            missing = wanted - measure(replace(shape, **{part: count}))
            # Filler stays below the goal by up to a sentence; what is missing then is pads.
            step = int(missing / per_sentence) if missing >= 0 else -max(1, int(-missing / per_sentence))
            if step == 0 or count + step in seen:
                break
            count = max(0, count + step)
            seen.add(count)
        while count and measure(replace(shape, **{part: count})) > wanted:
            count -= 1
        return self._padded(replace(shape, **{part: count}), f"pads_{part}", measure, wanted)

    def _padded(self, shape: Shape, part: str, measure: Callable[[Shape], int], wanted: int) -> Shape | None:
        pads = 0
        for _ in range(ROUNDS):
            missing = wanted - measure(replace(shape, **{part: pads}))
            if missing == 0:
                return replace(shape, **{part: pads})
            if (pads := pads + missing) < 0:
                return None
        return None


def renderer(server: Server, model: str, template: dict[str, Any]) -> Callable[[str], list[int]]:
    """How the server renders a single user message, generation prompt included.

    Args:
        template: the request's ``chat_template_kwargs``, which the rendering depends on.
    """

    def render(content: str) -> list[int]:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}]}
        if template:
            body["chat_template_kwargs"] = template
        return server.post("/tokenize", body)["tokens"]

    return render


def fields(answer: Any, words: str) -> Iterator[str]:
    """In which of an answer's three fields the words stand; spaces do not count."""
    wanted = "".join(words.split()).casefold()
    for name in ("reasoning", "reasoning_content", "content"):
        if wanted in "".join(getattr(answer, name).split()).casefold():
            yield name
