"""The upstream repairs that parsing depends on hold for our parsers too, and each check fails without its repair.

That the pinned vLLM has them is tested where the patch is (patch/tests); here the same checks are put to the classes
that stand in for vLLM's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dsml_support as support
import pytest

from moet_w2.dsml.adapters import MoetDeepSeekV4ReasoningParser, MoetDeepSeekV4ToolParser
from validation.dsml_local import parser_class

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "patch" / "tests"))
import upstream_checks as checks

IDS = support.TOKENIZER.encode("<think></think>{")


@pytest.fixture(scope="module")
def upstream() -> tuple[type, type]:
    made = parser_class("upstream")
    return made.reasoning_parser_cls, made.tool_parser_cls


def test_44297_the_mask_follows_the_end_of_thinking():
    from vllm.v1.structured_output import StructuredOutputManager

    reasoner = MoetDeepSeekV4ReasoningParser(support.TOKENIZER)
    checks.bitmask_follows_the_reasoning_boundary(StructuredOutputManager, reasoner, IDS[2], IDS[1])


def test_44993_the_grammar_advances_over_the_end_of_thinking():
    from vllm.v1.structured_output import StructuredOutputManager

    reasoner = MoetDeepSeekV4ReasoningParser(support.TOKENIZER)
    checks.grammar_advances_over_the_boundary(StructuredOutputManager, reasoner, IDS[2], IDS[1])


def test_44993_fails_for_a_reasoner_that_sees_no_end():
    from vllm.v1.structured_output import StructuredOutputManager

    class NoEnd(MoetDeepSeekV4ReasoningParser):
        def find_reasoning_end(self, token_ids):
            return type(super().find_reasoning_end(token_ids))(len(token_ids), False)

    with pytest.raises(AssertionError):
        checks.grammar_advances_over_the_boundary(
            StructuredOutputManager, NoEnd(support.TOKENIZER), IDS[2], IDS[1]
        )


def test_45877_both_parsers_answer_token_questions_by_one_engine():
    checks.one_state_machine(MoetDeepSeekV4ReasoningParser, MoetDeepSeekV4ToolParser)


def test_48748_no_special_token_in_thinking():
    checks.no_special_token_in_reasoning(MoetDeepSeekV4ReasoningParser, support.TOKENIZER)


def test_48748_fails_for_a_vocabulary_without_special_tokens(monkeypatch):
    from moet_w2.dsml import adapters
    from moet_w2.dsml.markup import Kind, Vocabulary

    class Blind(Vocabulary):
        def __init__(self, specials):
            super().__init__(specials)
            self.literals = {t: Kind.UNKNOWN if k is Kind.SPECIAL else k for t, k in self.literals.items()}

    monkeypatch.setattr(adapters, "vocabulary", Blind)
    with pytest.raises(AssertionError):
        checks.no_special_token_in_reasoning(MoetDeepSeekV4ReasoningParser, support.TOKENIZER)


def test_41801_the_string_attribute_and_the_wrapper():
    checks.string_attribute_and_wrapper(MoetDeepSeekV4ToolParser, support.TOKENIZER)


@pytest.mark.parametrize("without", ["attribute", "wrapper"])
def test_41801_fails_without_either(monkeypatch, without):
    from moet_w2.dsml import arguments

    if without == "attribute":
        monkeypatch.setattr(arguments, "decode", lambda text, types, explicit: text)
    else:
        monkeypatch.setattr(arguments, "WRAPPERS", ())
    with pytest.raises(AssertionError):
        checks.string_attribute_and_wrapper(MoetDeepSeekV4ToolParser, support.TOKENIZER)


def string_arrives_in_pieces(tool_cls: type) -> None:
    """#42879 in full: most of a long string is out before its closer is in."""
    asked = checks.chat_request(a="string")
    value = "x = y and z " * 40
    deltas = checks.streamed_deltas(tool_cls, support.TOKENIZER, checks.call_text(("a", "true", value)), asked, size=4)
    text = checks.call_text(("a", "true", value))
    begin, end = text.index(value), text.index(value) + len(value)
    early = [call.function.arguments or "" for at, call in deltas if begin < at < end and call.function]
    checks.require(len("".join(early)) > 0.9 * len(value) and len(early) > 50, f"{len(early)} pieces before the closer")


def test_42879_a_string_arrives_in_pieces(upstream):
    string_arrives_in_pieces(MoetDeepSeekV4ToolParser)
    with pytest.raises(AssertionError, match="pieces before the closer"):
        string_arrives_in_pieces(upstream[1])


def declared_only(tool_cls: type) -> None:
    """#49117: an invoke without its block is a call if it is complete and its tool declared; else it stays text."""
    asked = checks.chat_request(a="string")

    def read(text: str) -> tuple[list[str], str | None]:
        found = tool_cls(support.TOKENIZER, asked.tools).extract_tool_calls(text, asked)
        return [call.function.name for call in found.tool_calls], found.content

    inner = '<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter></｜DSML｜invoke>'
    declared, foreign = (f'<｜DSML｜invoke name="{name}">{inner}' for name in ("f", "g"))
    checks.require(read(declared) == (["f"], None), "a declared, complete invoke was not recovered")
    checks.require(read(foreign) == ([], foreign), f"an undeclared one became {read(foreign)}")
    cut = declared[:-5]
    checks.require(read(cut) == ([], cut), f"an incomplete one became {read(cut)}")


def test_49117_recovers_declared_tools_only(upstream):
    declared_only(MoetDeepSeekV4ToolParser)
    with pytest.raises(AssertionError, match="an undeclared one became"):
        declared_only(upstream[1])


def test_recovery_does_not_cross_requests():
    """One parser object, two answers: the second knows nothing of the first one's tools or open invoke."""
    first = support.request([support.tool("f")])
    second = support.request([support.tool("g")])
    parser = MoetDeepSeekV4ToolParser(support.TOKENIZER)
    assert not parser.extract_tool_calls('<｜DSML｜invoke name="f">', first).tools_called
    text = '</｜DSML｜invoke><｜DSML｜invoke name="f"></｜DSML｜invoke>'
    found = parser.extract_tool_calls(text, second)
    assert not found.tools_called and found.content == '<｜DSML｜invoke name="f"></｜DSML｜invoke>'


def test_messages_are_as_if_validated():
    from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall

    from moet_w2.dsml.messages import build

    function = build(DeltaFunctionCall, arguments="x")
    call = build(DeltaToolCall, index=1, function=function)
    made = build(DeltaMessage, tool_calls=[call])
    valid = DeltaMessage(tool_calls=[DeltaToolCall(index=1, function=DeltaFunctionCall(arguments="x"))])
    assert made == valid and made.model_fields_set == valid.model_fields_set
    for options in ({}, {"exclude_unset": True}, {"exclude_none": True}):
        assert json.loads(made.model_dump_json(**options)) == json.loads(valid.model_dump_json(**options))
    one, other = build(DeltaMessage, content="a"), build(DeltaMessage, content="a")
    one.tool_calls.append(call)
    one.reasoning = "r"
    assert other.tool_calls == [] and "reasoning" not in other.model_dump(exclude_unset=True)


def test_reasoning_tokens_are_counted_without_the_tags():
    ids = support.TOKENIZER.encode("one two three</think>answer")
    count = len(support.TOKENIZER.encode("one two three"))
    assert MoetDeepSeekV4ReasoningParser(support.TOKENIZER).count_reasoning_tokens(ids) == count
    chat = {"thinking": False}
    assert MoetDeepSeekV4ReasoningParser(support.TOKENIZER, chat_template_kwargs=chat).count_reasoning_tokens(ids) == 0
