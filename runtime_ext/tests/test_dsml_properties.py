"""Encode, cut anywhere, parse: the calls come back, and a stream says what the whole says."""

from __future__ import annotations

import random

import dsml_support as support
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moet_w2.dsml.history import encode_turn
from moet_w2.dsml.markup import special_tokens, vocabulary
from moet_w2.dsml.schema import Tools
from moet_w2.dsml.stream import Policy, Stream

EXAMPLES = support.examples(400, "MOET_DSML_EXAMPLES")
heavy = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
calls = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["f", "get_weather", "ns.tool-2"]), "arguments": support.arguments}),
    min_size=1,
    max_size=3,
)


def equal(found: object, expected: object) -> bool:
    """JSON equality: types count (1 is not True), the order of members does not."""
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(equal(found[key], value) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(equal, found, expected))
    return type(found) is type(expected) and found == expected


def assert_round_trip(parsed: support.Parsed, turn: list[dict], content: str, reasoning: str) -> None:
    assert (parsed.content or "", parsed.reasoning or "") == (content, reasoning)
    assert [call.name for call in parsed.calls] == [call["name"] for call in turn]
    for call, expected in zip(parsed.calls, turn, strict=True):
        assert equal(call.value, expected["arguments"]), (call.arguments, expected)


@pytest.fixture(scope="module")
def asked():
    return support.request([support.tool("f"), support.tool("get_weather"), support.tool("ns.tool-2")])


@heavy
@given(turn=calls, content=support.prose, reasoning=support.prose, seed=st.integers(0, 2**32))
def test_encode_and_parse_is_the_identity_in_every_cut(asked, turn, content, reasoning, seed):
    text = encode_turn(turn, content, reasoning)
    assert_round_trip(support.whole(text, asked), turn, content, reasoning)
    pieces = support.cut(text, random.Random(seed))
    parsed, _ = support.streamed(pieces, asked)
    assert parsed == support.whole(text, asked)


@heavy
@given(text=st.lists(st.one_of(st.sampled_from(support.TRICKY), st.text(max_size=5)), max_size=20).map("".join),
       seed=st.integers(0, 2**32), thinking=st.booleans(), tools=st.booleans())  # fmt: skip
def test_any_text_reads_the_same_in_every_cut(text, seed, thinking, tools):
    asked = support.request([support.tool("f", {"a": {"type": "string"}})] if tools else None)
    parsed, _ = support.streamed(support.cut(text, random.Random(seed)), asked, thinking)
    assert parsed == support.whole(text, asked, thinking)
    for call in parsed.calls:
        assert isinstance(call.value, dict)


@heavy
@given(text=st.lists(st.sampled_from(support.TRICKY), max_size=12).map("".join), cuts=st.integers(0, 2**32))
def test_the_stream_itself_depends_on_the_text_alone(text, cuts):
    words = vocabulary(special_tokens(support.TOKENIZER))
    policy = Policy(Tools({"f": None}), enabled=True)

    def read(pieces: list[str]) -> tuple:
        stream, found = Stream(words, policy, thinking=False), ("", "", {})
        for output in [*map(stream.feed, pieces), stream.finish()]:
            for call in output.calls:
                known = found[2].setdefault(call.index, [call.name, ""])
                known[1] += call.arguments
            found = (found[0] + "".join(output.reasoning), found[1] + "".join(output.content), found[2])
        return found

    assert read(support.cut(text, random.Random(cuts))) == read([text])
