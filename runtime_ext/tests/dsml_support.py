"""What the DSML tests share: requests, ways of cutting, strategies, and the marks that must never leak."""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any

from hypothesis import strategies as st

from validation.dsml_cases import TOKEN, Answer
from validation.dsml_local import TOKENIZER, request, streamed, whole

__all__ = ["TOKENIZER", "Answer", "json", "request"]


def examples(everyday: int, variable: str) -> int:
    """How many examples a heavy test draws: few every day, the full count where the variable asks for it."""
    return int(os.environ.get(variable, everyday))


def tool(name: str, properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {}, **more}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def read(text: str, asked: Any, thinking: bool = True) -> Answer:
    """The answer without streaming, from our parsers."""
    return whole("ours", text, asked, thinking)


def read_pieces(pieces: list[str], asked: Any, thinking: bool = True) -> Answer:
    """What a client gathers from a stream, from our parsers."""
    return streamed("ours", pieces, asked, thinking)


def same(one: Answer, other: Answer) -> bool:
    return (one.reasoning, one.content, one.calls) == (other.reasoning, other.content, other.calls)


def cut(text: str, rng: random.Random) -> list[str]:
    """A random way of cutting: single characters, tokens, few big pieces or anything between."""
    style = rng.randrange(4)
    if style == 0:
        return list(text) or [""]
    if style == 1:
        return TOKEN.findall(text) or [""]
    count = rng.randrange(1, 6) if style == 2 else rng.randrange(1, max(2, len(text)))
    places = sorted(rng.randrange(len(text) + 1) for _ in range(count))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def equal(found: object, expected: object) -> bool:
    """Equality of decoded JSON: types count (1 is not True), the order of members does not."""
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(equal(found[key], value) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(equal, found, expected))
    return type(found) is type(expected) and found == expected


TRICKY = [
    "<", "</", ">", "2>&1", '"', "\\", "\n", "\n\n", " ", "｜", "<｜", "</｜", "｜DSML｜", "<｜DSML｜", "</｜DSML｜",
    "</｜DSML｜parameter>", '<｜DSML｜parameter name="a" string="true">', '<｜DSML｜parameter name="b" string="false">',
    '<｜DSML｜parameter name="arguments">', "</｜DSML｜invoke>", "<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>",
    '<｜DSML｜invoke name="f">', '<｜DSML｜invoke name="g">', "</｜DSML｜tool_calls>", "<think>", "</think>",
    "<｜end▁of▁sentence｜>", "<｜User｜>", "日本", "🙂", "\x00", "\x1f", "é", "{", "}", "[]", "null", "true", "5",
    "\\u003c", "<｜DSML｜inv", "</｜DSML｜par", "<｜DSML｜x>", "text",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(max_size=8)), max_size=6).map("".join)
keys = st.text(st.characters(exclude_characters='<>"\n', exclude_categories=("Cs",)), min_size=1, max_size=8)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
arguments = st.dictionaries(keys, values, max_size=4)
# Prose without white space at its ends: the encoder puts two newlines of its own before a block.
prose = st.text(st.characters(exclude_characters="<｜", exclude_categories=("Cs",)), max_size=30).map(str.strip)

# Whole or cut structure of this format. Nothing of it may show, except in an invoke that is replayed as text.
LEAK = re.compile(r"</?｜DSML｜ ?(?:tool|function_calls|inv|para)|<｜(?:end▁of|begin▁of|User)[^｜]*｜>")
REPLAYED = re.compile(r"<｜DSML｜ ?invoke.*", re.S)
# What the parser takes out of a text: what stands on both sides of it may then look like a marker.
TAKEN_OUT = re.compile(r"<｜[^｜<>]*｜>|</?think>|</?｜DSML｜ ?(?:[^<>\n]*>|(?:tool|inv|para)[a-z_]*|)")


def leaks(answer: Answer, text: str) -> list[str]:
    """Markup in an answer that should have none.

    Markup that the model wrote as a JSON escape is a value, and meant. A marker with another one inside it is broken
    text, and documented as such: only what stood in the text as it shows is a leak.
    """
    if "\\u003c" in text or LEAK.search(TAKEN_OUT.sub("", text)):
        return []
    found = [f"arguments: {value!r}" for _, arguments in answer.calls for value in strings(json.loads(arguments))]
    content = answer.content or ""
    first = REPLAYED.search(content)
    found.append(f"content: {content[: first.start()] if first else content!r}")
    return [shown for shown in found if LEAK.search(shown)]


def strings(value: Any) -> list[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in (key, *strings(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in strings(inner)]
    return [value] if isinstance(value, str) else []
