"""The corpus, case by case: whole, by tokens, by characters."""

from __future__ import annotations

import pytest

from validation import dsml_cases, dsml_local

CASES = dsml_cases.load()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case):
    assert {mode: faults for mode, faults in dsml_local.run("ours", case).items() if faults} == {}


def test_the_corpus_is_wide_enough():
    assert len(CASES) >= 120
    assert {case.file for case in CASES} >= {"strings.yaml", "typed.yaml", "nested.yaml", "bare.yaml", "closers.yaml"}


def test_the_corpus_fails_on_another_parser():
    wrong = [case.id for case in CASES if any(dsml_local.run("upstream", case).values())]
    assert "nested-open-object" in wrong and "bare-undeclared" in wrong and "string-plain" not in wrong
