"""How differences between two decodings are found, traced and judged."""

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import dspark_equality as equality
from fake_engine import VOCABULARY, Engine, decode, stand_in

TOKENS, COUNT = 20, 90
ASKED = [[number % VOCABULARY, number // VOCABULARY, 5] for number in range(COUNT)]
COUNTERS = {"vllm:spec_decode_num_drafts": 4, "vllm:spec_decode_num_accepted_tokens": 6}


def answered(tokens: list[int], *logprobs: dict[str, float]) -> dict:
    return {"tokens": tokens, "logprobs": list(logprobs)}


SURE, TIE = {"1": -0.1, "2": -4.0}, {"1": -0.700, "2": -0.703}


def test_the_first_difference_of_each_prompt_is_found_with_its_margin() -> None:
    reference = [answered([1, 1], SURE, SURE), answered([1, 1], TIE, SURE), answered([1, 1], SURE, SURE)]
    near, clear = equality.differences(reference, [answered([1, 1]), answered([2, 9]), answered([1, 2])])
    assert near == {"prompt": 1, "position": 0, "margin": pytest.approx(0.003)}
    assert clear == {"prompt": 2, "position": 1, "margin": pytest.approx(3.9)}


def test_a_token_that_is_not_listed_and_an_answer_that_ends_have_no_margin() -> None:
    assert equality.differences([answered([1], SURE)], [answered([7])])[0]["margin"] is None
    ended = equality.differences([answered([1, 1], SURE, SURE)], [answered([1])])
    assert ended == [{"prompt": 0, "position": 1, "margin": None}]


def test_noise_is_taken_from_what_followed_the_same_tokens() -> None:
    one = [answered([1, 1, 5], SURE, TIE, TIE)]
    other = [answered([1, 2, 5], {"1": -0.1, "2": -4.25}, {"2": -9.0, "1": -9.0}, {"5": 0.0})]
    found = equality.noise(one, other)
    assert (found["values"], found["largest"]) == (2, 0.25)  # nothing from the second token on
    assert equality.noise([], [])["largest"] == 0.0


def test_prompts_are_the_same_in_both_processes_and_spread_over_the_lengths() -> None:
    made = equality.prompts(10, 768)
    assert made == equality.prompts(10, 768)
    assert (len(made[0]), len(made[-1])) == equality.LENGTHS
    assert all(3 <= token < 768 for prompt in made for token in prompt)


@pytest.fixture(scope="module")
def plain() -> dict:
    """The side without speculation, of a made-up engine; its traces hang on the other side's answers."""
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        args = argparse.Namespace(tokens=TOKENS, alone=COUNT // 2)
        return {"ready_seconds": 2.0} | equality.plain_answers(Engine(), ASKED, args)


def judged(plain: dict, answers: list[list[int]], counters: dict = COUNTERS) -> dict:
    dspark = {"answers": [answered(tokens) for tokens in answers], "counters": counters, "ready_seconds": 3.0}
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        found = equality.traces(ASKED, dspark["answers"], plain, VOCABULARY, Engine())
    seconds = {"seconds": plain["seconds"] | found["seconds"]}
    return equality.conclude(dspark | {"seconds": {"dspark": 1.0}}, plain | found | seconds, TOKENS, True)


def test_a_speculator_that_differs_by_rounding_alone_passes(plain) -> None:
    found = judged(plain, [decode(prompt, TOKENS) for prompt in ASKED])
    assert found["problems"] == []
    compared = found["dspark_against_plain"]
    assert compared["prompts"] == COUNT and 0 < compared["equal"] < COUNT
    assert {one["word"] for one in compared["differences"]} <= {"order", "spread", "noise"}
    assert found["traced"]["dspark"]["words"]["wrong"] == 0
    assert found["planted"]["second"]["found"] < found["planted"]["follows"]["found"] <= COUNT // 3
    assert found["acceptance"]["tokens_per_step"] == 2.5
    assert set(found["seconds"]) == {"dspark", "together", "alone", "trace"}


def test_a_speculator_that_accepts_a_wrong_token_now_and_then_fails(plain) -> None:
    found = judged(plain, [decode(prompt, TOKENS, wrong_every=100) for prompt in ASKED])
    wrong = found["traced"]["dspark"]["words"]["wrong"]
    assert wrong > 0 and sum("nats behind" in line for line in found["problems"]) == wrong
    assert [one for one in found["not_explained_by_shapes"]["dspark"] if one["behind"]["read"] > 1]


def test_answers_planted_with_wrong_tokens_fail(plain) -> None:
    answers = [one["tokens"] for one in plain["together"]]
    answers[7] = [*answers[7][:5], (answers[7][5] + 11) % VOCABULARY, *answers[7][6:]]
    found = judged(plain, answers)
    assert any(line.startswith("answer 7, position 5: ") for line in found["problems"])
    (difference,) = found["dspark_against_plain"]["differences"]
    assert (difference["prompt"], difference["position"], difference["word"]) == (7, 5, "wrong")


def test_an_answer_that_is_short_fails(plain) -> None:
    answers = [one["tokens"] for one in plain["together"]]
    answers[3] = answers[3][:-1]
    found = judged(plain, answers)
    assert found["problems"] == [f"answer 3 has not {TOKENS} tokens"]
    assert found["dspark_against_plain"]["differences"][0]["word"] == "missing"


def test_nothing_accepted_fails(plain) -> None:
    found = judged(plain, [one["tokens"] for one in plain["together"]], counters={})
    assert found["problems"] == ["0 tokens of 0 drafts were accepted: nothing was speculated"]
    assert found["acceptance"]["tokens_per_step"] is None


def test_what_a_command_has_left_is_taken_by_the_next(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(equality, "WORK", tmp_path)
    assert equality.kept("a", lambda: {"b": 1}) == equality.kept("a", lambda: {"b": 2}) == {"b": 1}

    def cut_off() -> dict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        equality.kept("c", cut_off)
    assert equality.kept("c", lambda: {"d": 3}) == {"d": 3}


def test_options_of_two_commands_are_not_mixed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(equality, "WORK", tmp_path)
    given = {"layers": 8, "prompts": 9, "tokens": 5, "alone": 3, "engine": "{}", "tiny": False}
    equality.hold_options(argparse.Namespace(**given | {"tokens": 4}))  # nothing was measured with these
    equality.hold_options(argparse.Namespace(**given))
    equality.kept("dspark", dict)
    equality.hold_options(argparse.Namespace(**given))
    with pytest.raises(SystemExit, match="give those options"):
        equality.hold_options(argparse.Namespace(**given | {"tokens": 6}))
