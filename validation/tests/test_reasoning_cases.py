"""The right answers of the reasoning cases, found again without the case file: by search, by counting, by running."""

from __future__ import annotations

import contextlib
import io
from fractions import Fraction
from itertools import combinations, permutations, product

import pytest

from validation.core import casefile
from validation.suites.reasoning import Reasoning

CASES = {case.id: case for case in casefile.load(Reasoning.cases, casefile.locate("reasoning", "full"))[0].cases}


def right(name: str, answer: object) -> None:
    assert CASES[name].check.fault(f"ANSWER: {answer}") is None


def test_delivery_order():
    def fits(a, b, c, d, e, f):
        return e not in (1, 6) and f == a + 3 and d < b and abs(e - b) > 1 and e > f

    (found,) = [p for p in permutations(range(1, 7)) if fits(*p)]
    right("delivery-order", "".join(sorted("ABCDEF", key=lambda letter: found["ABCDEF".index(letter)])))


def test_conditional_urn():
    draws = [{ball[0] for ball in draw} for draw in combinations([*product("r", range(5)), *product("b", range(4)),
                                                                 *product("w", range(3))], 3)]
    red = [draw for draw in draws if "r" in draw]
    right("conditional-urn", Fraction(sum(len(draw) == 3 for draw in red), len(red)))


def test_generator_trace():
    program = CASES["generator-trace"].prompt.split("```python\n")[1].split("```")[0]
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(program, {})  # the case's own text
    right("generator-trace", told.getvalue().strip())


def search(lines: list[str]):
    scope: dict = {}
    exec("\n".join(lines), scope)
    return scope["first_at_least"]


def agrees(function) -> bool:
    for size in range(5):
        for values in product(range(4), repeat=size):
            for x in range(5):
                if list(values) == sorted(values) and function(list(values), x) != sum(v < x for v in values):
                    return False
    return True


def test_faulty_search():
    text = CASES["faulty-search"].prompt.split("```text\n")[1].split("```")[0]
    lines = [line[3:] for line in text.splitlines()]
    wrong = search(lines)
    assert not agrees(wrong) and wrong([1], 2) == 0 and wrong([], 2) == 0
    lines[1] = lines[1].replace("len(values) - 1", "len(values)")
    assert agrees(search(lines))
    right("faulty-search", 2)


def test_link_time():
    different = set()
    for token in range(4):
        own = [(token, n) for n in range(6)]
        different |= {(0, n) if token == 1 and n < 2 else (token, n) for _, n in own}
    mebibytes = len(different) * 6.75 * 4
    right("link-time", f"{mebibytes / (48 * 1024) * 1000:.2f}")


def test_truth_tellers():
    def fits(a, b, c, d, e):
        says = (not e, sum((a, b, c, d, e)) == 3, not a and not e, a == c, not d or b)
        return (a, b, c, d, e) == says

    (found,) = [p for p in product((True, False), repeat=5) if fits(*p)]
    right("truth-tellers", "".join(letter for letter, truth in zip("ABCDE", found, strict=True) if truth))


def test_three_notes():
    right("three-notes", f"{(7 * 60 + 5) - (6 * 60 + 14)}; not stated; not stated; no")


MONTHS = ((18400, 6150, 7200, 940), (16900, 5480, 7200, 1310), (21300, 8020, 7600, 1420))
CORRECTED = (MONTHS[0], (16900, 5480, 7200, 5310), (21300, 7020, 7600, 1420))


def reserve(months) -> str:
    return f"{2500 + sum(max(0, income - sum(rest)) * 0.2 for income, *rest in months):.2f}"


def test_ledger():
    for figure in (number for month in MONTHS for number in month):
        assert f"{figure:,}" in CASES["ledger"].prompt
    right("ledger", reserve(MONTHS))
    assert CASES["ledger"].correction.check.fault(f"ANSWER: {reserve(CORRECTED)}") is None
    assert reserve(CORRECTED) == "4374.00" != reserve(MONTHS)
    highest = [max(range(3), key=lambda m, rows=rows: rows[m][1] / rows[m][0]) for rows in (MONTHS, CORRECTED)]
    assert highest == [2, 0], "the month with the highest share changes, as the reference says"


@pytest.mark.parametrize("name", CASES)
def test_another_answer_is_wrong(name):
    assert CASES[name].check.fault("ANSWER: 7") is not None
    assert CASES[name].check.fault("") is not None
