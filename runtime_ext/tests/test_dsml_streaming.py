"""What a stream promises beyond its sum: when pieces come, that they only ever append, and that time is linear."""

from __future__ import annotations

import json
import time

import dsml_support as support
import pytest

from moet_w2.dsml.answer import Policy
from moet_w2.dsml.arguments import MAX_DEPTH, DsmlDepthError
from moet_w2.dsml.markup import MAX_TAG, special_tokens, vocabulary
from moet_w2.dsml.schema import Tools
from moet_w2.dsml.stream import Stream
from moet_w2.errors import MoetError

OPEN = '</think><｜DSML｜tool_calls><｜DSML｜invoke name="run">'
CLOSE = "</｜DSML｜invoke></｜DSML｜tool_calls>"
WORDS = vocabulary(special_tokens(support.TOKENIZER))


@pytest.fixture(scope="module")
def asked():
    return support.request([support.tool("run", {"cmd": {"type": "string"}, "env": {"type": "object"}})])


def deltas(text: str, asked) -> list:
    """Every delta of a stream of characters, with the number of characters fed before it."""
    from validation.dsml_local import parser

    one = parser("ours", asked)
    prompt = support.TOKENIZER.encode("<think>")
    found = []
    for number, piece in enumerate(text):
        delta = one.parse_delta(piece, [], asked, prompt_token_ids=prompt, finished=number == len(text) - 1)
        if delta is not None:
            found.append((number + 1, delta))
    return found


def test_a_string_streams_character_by_character(asked):
    text = f'{OPEN}<｜DSML｜parameter name="cmd" string="true">{"x > y " * 50}</｜DSML｜parameter>{CLOSE}'
    begin = text.index("x > y")
    came = {at: call.function.arguments for at, delta in deltas(text, asked) for call in delta.tool_calls}
    # Every character of the value is out with the piece that brings it.
    assert all(came.get(at) == text[at - 1] for at in range(begin + 2, begin + 300))


def test_only_a_newline_and_a_started_tag_wait(asked):
    text = f'{OPEN}<｜DSML｜parameter name="cmd" string="true">a\nb<c</｜DSML｜parameter>{CLOSE}'
    pieces = [call.function.arguments for _, delta in deltas(text, asked) for call in delta.tool_calls]
    assert pieces == ['{"cmd": "a', "\\nb", "<c", '"', "}"]


def test_nested_members_stream(asked):
    inner = '<｜DSML｜parameter name="A" string="true">one two three</｜DSML｜parameter>'
    text = f'{OPEN}<｜DSML｜parameter name="env" string="false">\n{inner}\n</｜DSML｜parameter>{CLOSE}'
    came = [at for at, delta in deltas(text, asked) if delta.tool_calls]
    assert came[0] <= text.index("one") + 1 and len(came) > 13


def test_the_first_delta_of_a_call_names_it(asked):
    text = f'{OPEN}<｜DSML｜parameter name="cmd" string="true">ls</｜DSML｜parameter>{CLOSE}'
    first, *more = [call for _, delta in deltas(text, asked) for call in delta.tool_calls]
    assert (first.index, first.function.name, first.type) == (0, "run", "function") and first.id
    assert all(call.id is None and call.function.name is None for call in more)


def test_every_prefix_of_the_arguments_is_a_prefix_of_the_final_ones(asked):
    text = f'{OPEN}<｜DSML｜parameter name="cmd" string="true">a"\\\n日</｜DSML｜parameter>{CLOSE}'
    final = support.read(text, asked).calls[0][1]
    gathered = ""
    for _, delta in deltas(text, asked):
        for call in delta.tool_calls:
            gathered += call.function.arguments
            assert final.startswith(gathered)
    assert gathered == final and json.loads(final) == {"cmd": 'a"\\\n日'}


@pytest.mark.parametrize(
    ("inside", "length"),
    [
        ('<｜DSML｜parameter name="cmd" string="true">{}</｜DSML｜parameter>', 1_000_000),
        ('<｜DSML｜parameter name="env" string="false">["{}"]</｜DSML｜parameter>', 200_000),
        ('<｜DSML｜parameter name="env" string="false"><｜DSML｜parameter name="a" string="true">{}', 200_000),
        ('<｜DSML｜parameter name="arguments" string="true">{}</｜DSML｜parameter>', 200_000),
        ('{{"cmd": "{}"}}', 200_000),
    ],
    ids=["string", "json", "nested", "wrapper", "body"],
)
def test_time_is_linear_in_single_characters(inside, length):
    policy = Policy(Tools({"run": {"properties": {"cmd": {"type": "string"}}}}), enabled=True)

    def seconds(size: int) -> float:
        filler = ("if a < b > c: \\\\ </x> ｜ \\n" * (size // 26 + 1))[:size]
        text = OPEN.removeprefix("</think>") + inside.format(filler) + CLOSE
        stream = Stream(WORDS, policy)
        begin = time.process_time()
        for character in text:
            stream.feed(character)
        stream.finish()
        return time.process_time() - begin

    times = 10 if length < 1_000_000 else 50
    small, large = min(seconds(length // times) for _ in range(3)), seconds(length)
    # A quadratic parser would take about `times` times this bound's base.
    assert large < 2.5 * times * small, f"{times} times the text took {large / small:.1f} times as long"


def test_a_tag_without_end_is_held_only_so_far():
    stream = Stream(WORDS, Policy(Tools({"run": None}), enabled=True))
    held = '<｜DSML｜invoke name="' + "x" * (MAX_TAG - len('invoke name="') - 1)
    assert stream.feed(held).content == []
    assert "".join(stream.feed("xx").content).startswith("<｜DSML｜invoke")


def test_nesting_beyond_the_limit_is_a_clear_error(asked):
    def nested(depth: int) -> str:
        return OPEN + '<｜DSML｜parameter name="a" string="false">' * depth + "1" + CLOSE

    value = json.loads(support.read(nested(MAX_DEPTH), asked).calls[0][1])
    for _ in range(MAX_DEPTH - 1):
        value = value["a"]
    assert value == {"a": 1}
    with pytest.raises(DsmlDepthError, match=rf"^tool call run: .* {MAX_DEPTH} levels") as caught:
        support.read(nested(MAX_DEPTH + 1), asked)
    assert isinstance(caught.value, MoetError) and "\n" not in str(caught.value)


def test_deep_json_is_text_not_a_crash(asked):
    deep = "[" * 100_000
    text = f'{OPEN}<｜DSML｜parameter name="env" string="false">{deep}</｜DSML｜parameter>{CLOSE}'
    assert json.loads(support.read(text, asked).calls[0][1]) == {"env": deep}


def test_a_lone_surrogate_can_be_sent(asked):
    text = f'{OPEN}<｜DSML｜parameter name="env" string="false">"\\ud800"</｜DSML｜parameter>{CLOSE}'
    arguments = support.read(text, asked).calls[0][1]
    assert arguments.encode() and json.loads(arguments) == {"env": "\ud800"}
