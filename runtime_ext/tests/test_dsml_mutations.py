"""Damaged outputs: markers dropped, doubled, cut short, swapped. Never an exception, never a leak, always JSON."""

from __future__ import annotations

import json
import random
import re
import tracemalloc

import dsml_support as support
import pytest

from validation import dsml_cases
from validation.dsml_cases import TOKEN

MUTATIONS = support.examples(2000, "MOET_DSML_MUTATIONS")
PARTS = re.compile(r"</?｜DSML｜[^<>\n]*>|</?think>|<｜[^｜<>]+｜>|[^<]+|<", re.S)


def mutate(text: str, rng: random.Random) -> str:
    """Between one and three injuries, mostly to markers."""
    parts = PARTS.findall(text)
    for _ in range(rng.randrange(1, 4)):
        if not parts:
            break
        markers = [i for i, part in enumerate(parts) if part.startswith("<") and len(part) > 1]
        at = rng.choice(markers) if markers and rng.random() < 0.8 else rng.randrange(len(parts))
        match rng.randrange(6):
            case 0:
                del parts[at]
            case 1:
                parts.insert(at, parts[at])
            case 2:
                parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)]
            case 3:
                other = rng.randrange(len(parts))
                parts[at], parts[other] = parts[other], parts[at]
            case 4:
                parts = parts[: at + 1]
            case 5:
                parts.insert(at, rng.choice(support.TRICKY))
    return "".join(parts)


@pytest.fixture(scope="module")
def corpus():
    return [(case, support.request(case.tools, case.tool_choice)) for case in dsml_cases.load()]


def test_damaged_outputs_do_no_harm(corpus):
    rng = random.Random(20261130)
    for number in range(MUTATIONS):
        case, asked = corpus[number % len(corpus)]
        text = mutate(case.output, rng)
        answer = support.read(text, asked, case.thinking)
        for _, arguments in answer.calls:
            assert isinstance(json.loads(arguments), dict), text
        if case.tools and case.tool_choice != "none":
            assert support.leaks(answer, text) == [], text
        else:
            assert answer.calls == ()
        if number % 3 == 0:
            pieces = support.cut(text, rng)
            assert support.same(support.read_pieces(pieces, asked, case.thinking), answer), (text, pieces)


def test_a_leak_would_be_noticed():
    bare = '<｜DSML｜invoke name="x">a</｜DSML｜invoke>'
    assert support.leaks(support.Answer(content="a</｜DSML｜parameter>"), "")
    assert support.leaks(support.Answer(content="a<｜end▁of▁sentence｜>"), "")
    assert support.leaks(support.Answer(calls=(("f", '{"a": "b</｜DSML｜parameter>"}'),)), "")
    assert not support.leaks(support.Answer(content=f"see {bare}"), "")


def test_memory_is_bounded_by_the_output():
    """A stream that never resolves holds one tag and the value that is open, not more."""
    asked = support.request([support.tool("f")])
    one = '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">x'
    text = "</think><｜DSML｜tool_calls>" + one * 1500
    pieces = TOKEN.findall(text)
    tracemalloc.start()
    support.read_pieces(pieces, asked)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * len(text), f"{peak / len(text):.0f} bytes a character"


def test_the_watch_for_leaks_sleeps_seldom():
    """How many damaged outputs the leak check passes over, because a marker stands inside another one."""
    rng = random.Random(1)
    cases = dsml_cases.load()
    texts = [mutate(cases[number % len(cases)].output, rng) for number in range(2000)]
    skipped = sum("\\u003c" in text or bool(support.LEAK.search(support.TAKEN_OUT.sub("", text))) for text in texts)
    assert skipped < 100, f"{skipped} of 2000"
