"""The corpus is right and its trained and held-out sides never meet."""

from __future__ import annotations

import re
from random import Random

import pytest

from demo.make import arithmetic, data, held_out, render, tools
from demo.make.split import call_held_out, pair_held_out


def problems_of(sample: data.Sample) -> list[tuple[int, int]]:
    """Operand pairs of every worked sum or difference in a sample's turns."""
    turns = [*sample.messages, sample.target]
    texts = [m.get("reasoning", "") for m in turns if m["role"] == "assistant"]
    found = [re.match(r"(\d+) [+-] (\d+)\. ", text) for text in texts]
    return [(int(m[1]), int(m[2])) for m in found if m]


def test_one_pair_in_ten_is_held_out_in_both_orders() -> None:
    flags = [[pair_held_out(a, b) for b in range(100)] for a in range(100)]
    assert 0.08 < sum(map(sum, flags)) / 10_000 < 0.12
    assert all(flags[a][b] == flags[b][a] for a in range(100) for b in range(100))
    assert pair_held_out(37, 9) and pair_held_out(9, 37)


@pytest.mark.parametrize("shares,with_tools", [(data.SHORT, False), (data.LONG, True)])
def test_no_trained_sample_holds_a_held_out_problem(shares: dict[str, int], with_tools: bool) -> None:
    random, seen = Random(5), 0
    for _ in range(1500):
        for a, b in problems_of(data.draw(random, shares, with_tools)):
            seen += 1
            assert not pair_held_out(a, b)
    assert seen > 100


def test_held_out_samples_are_of_the_other_side() -> None:
    for kind in ("arithmetic", "arithmetic, thinking off", "several turns"):
        for sample in held_out.samples(kind, 200):
            a, b = problems_of(sample)[-1]
            assert pair_held_out(a, b)


def test_calls_keep_to_their_side() -> None:
    random = Random(6)
    for family in tools.FAMILIES:
        for side in (True, False):
            for _ in range(50):
                _, values = tools.ask(family, random, held_out=side)
                assert call_held_out(family.key, values) == side


@pytest.mark.parametrize("operation", ["+", "-"])
def test_every_reasoning_adds_up(operation: str) -> None:
    for a in range(100):
        for b in range(100):
            text = arithmetic.reasoning(operation, a, b)
            steps = re.findall(r"((?:\d+ [+-] )+\d+) = (-?\d+)\.", text)
            assert len(steps) == 2
            for left, right in steps:
                terms = re.findall(r"([+-]?) ?(\d+)", left)
                assert sum(-int(n) if sign == "-" else int(n) for sign, n in terms) == int(right)
            ones, tens = (int(right) for _, right in steps)
            value = 10 * tens + ones % 10
            assert (-value if operation == "-" and a < b else value) == arithmetic.answer(operation, a, b)
            assert text.endswith(f"Answer: {arithmetic.answer(operation, a, b)}")


def test_wordings_keep_the_order_of_operands() -> None:
    assert "Subtract 9 from 37." in {
        arithmetic.question("-", 37, 9, Random(i)).removesuffix(" Thanks!") for i in range(300)
    }
    assert all("37" in arithmetic.question("-", 37, 9, Random(i)) for i in range(50))


def test_without_a_tool_the_answer_is_a_refusal_and_no_call() -> None:
    random, bare = Random(7), 0
    for _ in range(200):
        sample = data.sample("no tool", random)
        assert "tool_calls" not in sample.target and sample.target["content"] == data.NO_TOOL
        bare += sample.tools is None
    assert 50 < bare < 190


def test_calls_fit_their_schemas_and_cover_what_was_promised() -> None:
    random = Random(8)
    nested = two = parallel = off = 0
    for _ in range(600):
        sample = data.sample("call", random)
        definitions = {t["function"]["name"]: t["function"]["parameters"] for t in sample.tools or ()}
        off += not sample.thinking
        parallel += len(sample.target["tool_calls"]) > 1
        for call in sample.target["tool_calls"]:
            arguments = call["function"]["arguments"]
            schema = definitions[call["function"]["name"]]
            assert set(schema.get("required", ())) <= set(arguments) <= set(schema["properties"])
            nested += any(isinstance(value, dict) for value in arguments.values())
            two += len(arguments) == 2
    assert min(nested, two, parallel, off) > 10


def test_the_corpus_depends_on_nothing_but_the_seed() -> None:
    assert data.corpus(1, 30) == data.corpus(1, 30)
    assert data.corpus(1, 30) != data.corpus(2, 30)


def test_reasoning_appears_only_where_thinking_is_on() -> None:
    sample = held_out.samples("arithmetic, thinking off", 1)[0]
    assert sample.prompt().endswith("<｜Assistant｜></think>")
    assert "Ones" not in sample.reply()
    assert render.reply(sample.target, True).startswith(sample.target["reasoning"] + "</think>")
