"""Encode, cut anywhere, parse: the calls come back, and a stream says what the whole says."""

from __future__ import annotations

import json
import random

import dsml_support as support
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moet_w2.dsml.answer import Policy
from moet_w2.dsml.history import encode_turn
from moet_w2.dsml.markup import special_tokens, vocabulary
from moet_w2.dsml.schema import Tools
from moet_w2.dsml.stream import Stream

EXAMPLES = support.examples(250, "MOET_DSML_EXAMPLES")
heavy = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
NAMES = ("f", "get_weather", "ns.tool-2")
calls = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(NAMES), "arguments": support.arguments}), min_size=1, max_size=3
)
seeds = st.integers(0, 2**32)
scraps = st.lists(st.one_of(st.sampled_from(support.TRICKY), st.text(max_size=5)), max_size=20).map("".join)


@pytest.fixture(scope="module")
def asked():
    return support.request([support.tool(name) for name in NAMES])


@heavy
@given(turn=calls, content=support.prose, reasoning=support.prose, seed=seeds)
def test_encode_and_parse_is_the_identity_in_every_cut(asked, turn, content, reasoning, seed):
    text = encode_turn(turn, content, reasoning)
    answer = support.read_pieces(support.cut(text, random.Random(seed)), asked)
    assert (answer.content or "", answer.reasoning or "") == (content, reasoning)
    assert [name for name, _ in answer.calls] == [call["name"] for call in turn]
    for (_, found), call in zip(answer.calls, turn, strict=True):
        assert support.equal(json.loads(found), call["arguments"]), (found, call)
    assert support.same(answer, support.read(text, asked))


@heavy
@given(text=scraps, seed=seeds, thinking=st.booleans(), choice=st.sampled_from(["auto", "none", "no tools"]))
def test_any_text_reads_the_same_in_every_cut(text, seed, thinking, choice):
    tools = [support.tool("f", {"a": {"type": "string"}})]
    asked = support.request(None) if choice == "no tools" else support.request(tools, choice)
    answer = support.read_pieces(support.cut(text, random.Random(seed)), asked, thinking)
    assert support.same(answer, support.read(text, asked, thinking))
    assert not answer.calls or choice == "auto"
    for _, arguments in answer.calls:
        assert isinstance(json.loads(arguments), dict)


@heavy
@given(text=st.lists(st.sampled_from(support.TRICKY), max_size=12).map("".join), seed=seeds)
def test_the_stream_itself_depends_on_the_text_alone(text, seed):
    words = vocabulary(special_tokens(support.TOKENIZER))
    policy = Policy(Tools({"f": None}), enabled=True)

    def read(pieces: list[str]) -> tuple:
        stream, reasoning, content, found = Stream(words, policy), "", "", {}
        for output in [*map(stream.feed, pieces), stream.finish()]:
            reasoning += "".join(output.reasoning)
            content += "".join(output.content)
            for call in output.calls:
                found.setdefault(call.index, [call.name, ""])[1] += call.arguments
        return reasoning, content, found

    assert read(support.cut(text, random.Random(seed))) == read([text])


def test_the_comparison_tells_types_apart():
    assert support.equal({"a": [1]}, {"a": [1]})
    assert not support.equal({"a": [1]}, {"a": [True]}) and not support.equal({"a": "1"}, {"a": 1})


def test_the_properties_fail_on_the_parser_that_is_replaced(asked):
    """The gate can fail: the pinned vLLM loses this call's text after the value and one of its members."""
    from validation.dsml_local import whole

    text = encode_turn([{"name": "f", "arguments": {"a": "x\x3c/｜DSML｜parameter>y"}}], "", "")
    found = whole("upstream", text.replace("\\u003c", "<"), asked)
    assert json.loads(found.calls[0][1]) != {"a": "x</｜DSML｜parameter>y"}
