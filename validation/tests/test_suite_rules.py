"""The rules that suites judge by: calls, answers, loops, exact prompts, what a case file may say."""

from __future__ import annotations

import argparse
import random
from types import SimpleNamespace

import pytest
import yaml
from pydantic import ValidationError
from suite_server import PROMPT_TOKENS, pieces
from suites_under_test import SUITES
from tokenizers import Tokenizer

from validation.core import casefile, wire
from validation.core.answer import Answer, Call, assemble
from validation.core.errors import RunError, ServerError
from validation.core.loops import repetition
from validation.core.plan import Invocation, unique
from validation.core.prepare import prepare
from validation.suites import haystack
from validation.suites.agentic import Agentic
from validation.suites.needle import LONGEST, Needle
from validation.suites.reasoning import Check, Reasoning
from validation.suites.tools import ExpectedCall, Tool, Tools, ToolsSet, judge_calls
from validation.suites.world import World, WorldTool

NO_OPTIONS = {"tokens": None, "position": None, "acknowledged": False}


def planned(suite, name, limit=None, **options):
    chosen = NO_OPTIONS | options if suite.name == "needle" else {}
    return prepare(suite, name, chosen, "", limit)[2]


def test_the_tool_suite_has_thirty_invocations():
    kinds = [invocation.kind for invocation in planned(Tools(), "full").invocations]
    assert (len(kinds), kinds.count("smoke"), kinds.count("measured"), kinds.count("concurrent")) == (30, 1, 26, 3)
    assert [len(unit.invocations) for unit in planned(Tools(), "full").units] == [1] * 27 + [3]


def test_the_reasoning_suite_has_eight_cases_and_nine_requests():
    cases = casefile.load(Reasoning.cases, casefile.locate("reasoning", "full"))[0].cases
    assert [case.correction is not None for case in cases] == [False] * 7 + [True]


def test_the_agentic_control_has_six_turns_and_five_calls():
    (case,) = casefile.load(Agentic.cases, casefile.locate("agentic", "full"))[0].cases
    assert (case.turns, len(case.calls)) == (6, 5)


def test_the_needle_suite_reaches_the_longest_prompt_only_when_told():
    needle = Needle()
    assert "--acknowledge-full-run asks for them" in planned(needle, "full").left_out["tokens-994987"]
    whole = planned(needle, "full", acknowledged=True)
    assert whole.invocations[-1].case.tokens == LONGEST == 994_987 and not whole.left_out


def test_a_prompt_that_the_server_does_not_admit_is_left_out_and_named():
    left = planned(Needle(), "full", limit=300_000, acknowledged=True).left_out
    assert set(left) == {"tokens-500k", "tokens-994987"}
    assert "over the server's 300,000" in left["tokens-500k"]


def test_a_length_that_the_server_does_not_admit_is_not_to_be_acknowledged():
    with pytest.raises(RunError, match=r"100,000 tokens and 200 of answer are over the server's 4,096$"):
        planned(Needle(), "demo", limit=4096, tokens=100_000)


def test_only_a_length_that_is_left_out_says_why():
    with pytest.raises(RunError, match="tokens-994987 is left out: .* over the server's 524,288"):
        prepare(Needle(), "full", NO_OPTIONS | {"acknowledged": True}, "994987", 524_288)


def test_a_length_of_ones_own():
    (one,) = planned(Needle(), "full", tokens=12_345, position=678).invocations
    assert (one.case.tokens, one.case.start) == (12_345, 678)
    with pytest.raises(RunError, match="acknowledge-full-run"):
        planned(Needle(), "full", tokens=700_000)
    assert planned(Needle(), "full", tokens=700_000, acknowledged=True).invocations[0].case.start == 350_000


@pytest.mark.parametrize(("tokens", "position"), [(0, None), (LONGEST + 1, None), (100, 100), (100, 0)])
def test_a_length_that_cannot_be(tokens, position):
    with pytest.raises(RunError, match="is not"):
        planned(Needle(), "full", tokens=tokens, position=position, acknowledged=True)


def test_a_position_needs_a_length():
    args = argparse.Namespace(tokens=None, position=4, acknowledge_full_run=False)
    with pytest.raises(RunError, match="--position needs --tokens"):
        Needle().options(args)


def test_an_id_that_occurs_twice_is_refused():
    with pytest.raises(RunError, match="occurs twice"):
        unique([Invocation("a", "k", None), Invocation("a", "k", None)])


# --- prompts of exact length


def word_tokens(content):
    return [*range(PROMPT_TOKENS), *(hash(piece) for piece in pieces(content))]


def paired_tokens(content):
    """A tokenizer to which two equal pieces in a row are one: pads of one kind do not add up."""
    found = []
    for piece in pieces(content):
        if found and found[-1] == piece:
            found[-1] = f"{piece}{piece}"
        else:
            found.append(piece)
    return [*range(PROMPT_TOKENS), *(hash(piece) for piece in found)]


TEXT = haystack.Text(("One short sentence.", "Another, somewhat longer sentence here."), "It is 7341.", "Which?", 5)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("render", [word_tokens, paired_tokens])
def test_a_prompt_has_exactly_the_wanted_length_and_place(render, seed):
    drawn = random.Random(seed)
    tokens = drawn.randrange(200, 4000)
    position = drawn.randrange(40, tokens - 60)
    made = haystack.Builder(render, TEXT, ("!", " a")).build(tokens, position)
    content = TEXT.content(haystack.Shape(**made["shape"]))
    rendered = render(content)
    assert len(rendered) == tokens == made["tokens"] and made["position"] == position
    assert rendered[position] == hash("It") and content.count("7341") == 1


def test_the_full_sets_words_make_exact_prompts_by_a_real_tokenizer(demo_checkpoint):
    """8,000 tokens here; by the same tokenizer the 994,987 took 27 renderings and half a minute."""
    tokenizer = Tokenizer.from_file(str(demo_checkpoint / "tokenizer.json"))
    cases = casefile.load(Needle.cases, casefile.locate("needle", "full"))[0]
    text, case = cases.text(cases.cases[0].seed), cases.cases[0]
    builder = haystack.Builder(lambda content: tokenizer.encode(content).ids, text, tuple(cases.pads))
    made = builder.build(case.tokens, case.start)
    encoded = tokenizer.encode(text.content(haystack.Shape(**made["shape"])))
    assert len(encoded.ids) == case.tokens == 8000
    assert tokenizer.decode(encoded.ids[case.start :]).startswith(cases.needle)


@pytest.mark.parametrize(("tokens", "position"), [(20, 15), (200, 3), (200, 198)])
def test_a_prompt_that_cannot_be_is_told(tokens, position):
    with pytest.raises(ServerError, match="no prompt of"):
        haystack.Builder(word_tokens, TEXT, ("!",)).build(tokens, position)


def test_all_three_fields_are_read():
    for name in ("reasoning", "reasoning_content", "content"):
        assert list(haystack.fields(Answer(**{name: "it is 73 41."}), "7341")) == [name]
    assert list(haystack.fields(Answer(content="7342"), "7341")) == []


# --- answers


def test_a_stream_is_put_together_with_its_times():
    lines = [
        (0.1, 'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}'),
        (0.2, 'data: {"choices": [{"delta": {"reasoning": "a"}, "token_ids": [1]}]}'),
        (0.3, 'data: {"choices": [{"delta": {"reasoning_content": "b", "content": "c"}, "token_ids": [2, 3]}]}'),
        (0.4, 'data: {"choices": [{"delta": {"tool_calls": [{"index": 1, "id": "i", "function": {"name": "f"}}]}}]}'),
        (0.5, 'data: {"choices": [{"delta": {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}}]}'),
        (0.6, 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}'),
        (0.7, 'data: {"choices": [], "usage": {"completion_tokens": 3}}'),
        (0.8, "data: [DONE]"),
    ]
    answer = assemble(lines)
    assert (answer.reasoning, answer.reasoning_content, answer.content) == ("a", "b", "c")
    assert answer.calls == [Call(), Call("i", "f", "{}")]
    assert (answer.token_ids, answer.finish_reason, answer.ended) == ([1, 2, 3], "stop", True)
    assert answer.events == [
        (0.2, "first reasoning"),
        (0.3, "first reasoning_content"),
        (0.3, "first content"),
        (0.4, "first call"),
        (0.6, "finish"),
        (0.7, "usage"),
        (0.8, "done"),
    ]


def test_lines_end_in_lf_or_crlf_wherever_the_pieces_are_cut():
    text = 'data: {"a": "\u2028 \x85é"}\r\n\r\ndata: 1\n\ndata: [DONE]'
    for size in (1, 2, 7, 100):
        data = text.encode()
        found = list(wire._lines(data[at : at + size] for at in range(0, len(data), size)))
        assert found == ['data: {"a": "\u2028 \x85é"}', "", "data: 1", "", "data: [DONE]"]


def test_a_broken_line_is_an_error():
    assert "no JSON" in assemble([(0.1, "data: {")]).error


@pytest.mark.parametrize(
    ("check", "content", "right"),
    [
        ({"answer": "12/37"}, "So it is.\n**ANSWER: 12/37**", True),
        ({"answer": "12/37"}, "ANSWER: 12/37\nANSWER: 1/2", False),
        ({"answer": "1 1 4 none"}, "Answer: `1 1 4 none`.", True),
        ({"answer": "BDE"}, "It is BDE.", False),
        ({"answer": "12.08"}, "ANSWER: 12.085", False),
        ({"last_number": 95}, "37 + 58 = 95", True),
        ({"last_number": 95}, "95 or 96", False),
        ({"last_number": -3}, "It is -3.", True),
        ({"matches": ["sum", "95"]}, "The SUM is 95", True),
        ({"matches": ["sum", "95"]}, "95", False),
        ({"absent": ["sorry"]}, "Sorry, 95", False),
    ],
)
def test_a_check(check, content, right):
    assert (Check(**check).fault(content) is None) is right


def test_a_check_that_checks_nothing_is_refused():
    with pytest.raises(ValidationError, match="checks nothing"):
        Check()


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("", False),
        ("word " * 40, False),  # 200 characters: too short to matter
        ("word " * 60, True),
        ("A beginning. " + "Let me check that once more. " * 12 + "Let me che", True),
        ("Let me check that once more. " * 12 + "Then it is done and nothing of it is left.", False),
        ("".join(f"Row {n}: {n * n}. " for n in range(90)), False),
        ("-" * 300, True),
        (" " * 600, False),
    ],
)
def test_a_text_that_goes_round(text, loop):
    assert (repetition(text) is not None) is loop


def test_a_loop_is_described():
    assert repetition("Begin. " + "abc " * 100 + "ab") == {"text": "c ab", "times": 100, "at": 9}


# --- calls

SEND = Tool(
    description="Send.",
    parameters={"type": "object", "properties": {"to": {"type": "string"}, "n": {"type": "number"}}},
)


def judged(wanted, given, any_order=False):
    answer = Answer(calls=[Call("i", name, arguments) for name, arguments in given])
    wanted = [ExpectedCall(name=name, arguments=arguments) for name, arguments in wanted]
    return [fault.gate for fault in judge_calls(answer, wanted, {"send": SEND, "stop": SEND}, any_order)]


TWO = [("send", {"to": "a"}), ("send", {"to": "b"})]


@pytest.mark.parametrize(
    ("wanted", "given", "any_order", "gates"),
    [
        ([("send", {"n": 3})], [("send", '{"n": 3.0}')], False, []),
        ([("send", {"n": 1})], [("send", '{"n": true}')], False, ["schema"]),
        ([("send", {"n": 1})], [("send", '{"n": 1, "to": "a"}')], False, ["arguments"]),
        ([("send", {"n": 1})], [("send", '{"n": 1, "x": 1}')], False, ["schema"]),
        ([("send", {})], [("send", "[]")], False, ["schema"]),
        (TWO, [("send", '{"to": "b"}'), ("send", '{"to": "a"}')], True, []),
        (TWO, [("send", '{"to": "b"}'), ("send", '{"to": "a"}')], False, ["arguments"]),
        (TWO, [("send", '{"to": "a"}'), ("send", '{"to": "a"}')], True, ["arguments"]),
        ([("send", {}), ("stop", {})], [("stop", "{}"), ("send", "{}")], False, ["selection"]),
        ([("send", {}), ("stop", {})], [("stop", "{}"), ("send", "{}")], True, []),
        ([], [("send", "{}")], False, ["selection"]),
        ([("send", {})], [], False, ["selection"]),
    ],
)
def test_calls_are_judged_exactly(wanted, given, any_order, gates):
    assert judged(wanted, given, any_order) == gates


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(smoke="nobody"), "nobody is no case"),
        (lambda d: d["cases"][0].update(tools=["set_timer"]), "get_weather is not on offer"),
        (lambda d: d["cases"][0]["tools"].append("fly"), "no tool fly"),
        (lambda d: d["cases"][0]["calls"][0].update(arguments={"city": 1}), "break its schema"),
        (lambda d: d["tools"]["set_timer"].update(parameters={"type": "thing"}), "no JSON schema"),
        (lambda d: d["tools"]["set_timer"].update(parameters={}), "type: object"),
        (lambda d: d.update(colour=1), "Extra inputs"),
    ],
)
def test_a_tool_set_that_contradicts_itself_is_refused(change, words):
    document = yaml.safe_load(casefile.locate("tools", "demo").read_text())
    ToolsSet.model_validate(document)
    change(document)
    with pytest.raises(ValidationError, match=words):
        ToolsSet.model_validate(document)


# --- the mock world


def world_of_the_full_set():
    cases = casefile.load(Agentic.cases, casefile.locate("agentic", "full"))[0]
    return cases, World(cases.cases[0].files, cases.tools)


def test_the_artefact_of_the_full_task_is_what_its_files_give():
    cases, world = world_of_the_full_set()
    rows = [line.split(",") for line in world.files["orders.csv"].splitlines()[1:]]
    prices = yaml.safe_load(world.files["prices.json"])
    sums, unpriced = {}, set()
    for _, customer, article, count, state in rows:
        if state != "cancelled":
            if article not in prices:
                unpriced.add(article)
            sums[customer] = sums.get(customer, 0) + int(count) * prices.get(article, 0)
    wanted = cases.cases[0].artefact.equals
    assert wanted == {"customers": sums, "total": sum(sums.values()), "unpriced": sorted(unpriced)}
    assert cases.cases[0].check.fault(f"The total is {wanted['total']:.2f} euros.") is None


def test_the_tools_of_the_world():
    _, world = world_of_the_full_set()

    def call(name, arguments):
        return world.call(Call("i", name, arguments))

    assert call("list_files", "{}") == ('["orders.csv", "prices.json"]', None)
    assert "K-1" in call("read_file", '{"path": "prices.json"}')[0]
    assert "no file" in call("read_file", '{"path": "x"}')[0]
    assert "is not there" in call("check_report", '{"path": "report.json"}')[0]
    call("write_file", '{"path": "report.json", "content": "{}"}')
    assert "required" in call("check_report", '{"path": "report.json"}')[0]
    content = '{\\"customers\\": {}, \\"total\\": 1, \\"unpriced\\": []}'
    call("write_file", f'{{"path": "report.json", "content": "{content}"}}')
    assert call("check_report", '{"path": "report.json"}')[0] == '{"valid": true}'
    assert "no tool" in call("fly", "{}")[1]
    assert "no JSON" in call("list_files", "{")[1]
    assert "break its schema" in call("read_file", "{}")[1]


def test_a_logging_tool_keeps_what_it_got():
    tool = WorldTool(description="d", parameters={"type": "object"} | {"properties": {"a": {}}}, action="log", log="l")
    world = World({}, {"t": tool})
    world.call(Call("i", "t", '{"a": 1}'))
    world.call(Call("i", "t", '{"a": 2}'))
    assert world.artefact("l") == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
@pytest.mark.parametrize("name", ["full", "demo"])
def test_every_set_can_be_planned_and_says_what_it_is_for(suite, name):
    assert planned(suite, name).invocations
    about = casefile.load(suite.cases, casefile.locate(suite.name, name))[0].about
    assert ("demo server" in about) is (name == "demo")


def test_a_task_that_never_ends_is_given_up(monkeypatch):
    suite = Agentic()
    cases = casefile.load(suite.cases, casefile.locate("agentic", "demo"))[0]
    call = Call("i", "set_timer", '{"minutes": 1}')
    answer = Answer(calls=[call], finish_reason="tool_calls", ended=True, usage={"completion_tokens": 1})
    talk = SimpleNamespace(
        chat=lambda *_, **__: SimpleNamespace(answer=answer, status=200, body=None), happened=lambda *_, **__: None
    )
    found = suite.perform(Invocation("lights", "task", cases.cases[0]), cases, talk)
    assert [(fault.gate, fault.text) for fault in found] == [
        ("turns", "the task has not ended after 8 turns; 6 are right")
    ]
