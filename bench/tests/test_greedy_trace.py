"""What a token is called that another engine would not have taken, and when that is a fault."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import greedy_trace
from greedy_trace import Floor


def suspect(read: float, *shapes: float, at_least: tuple[str, ...] = ()) -> dict:
    behind = {"read": read} | {f"shape {number}": nats for number, nats in enumerate(shapes)}
    return {"answer": 0, "position": 1, "token": 7, "behind": behind, "at_least": list(at_least)}


def traced(tokens: int, *suspects: dict) -> dict:
    return {"tokens": tokens, "suspects": list(suspects)}


FLOOR = Floor(typical=0.5, most=2.0)


@pytest.mark.parametrize(
    ("found", "called"),
    [
        (suspect(0.5, 0.25, 0.0), "order"),  # it leads in one of the shapes
        (suspect(0.5, 0.25, 0.75), "spread"),  # noise of 0.5 at this place, least 0.25
        (suspect(1.0, 1.25, 1.5), "noise"),  # noise of 0.5 and the typical 0.5: as much as it is behind
        (suspect(3.0, 3.25, 3.5), "wrong"),
        (suspect(9.0, 2.5, 2.5, at_least=("shape 0", "shape 1")), "wrong"),  # a lower end is no spread
        (suspect(60.0, 3.0, 3.0), "spread"),  # measured there: noise may be as large as that
        (suspect(0.75, 0.75, 0.75), "noise"),  # shapes agree, perhaps by chance
        (suspect(1.25, 1.25, 1.25), "wrong"),
    ],
)
def test_a_token_is_called_by_the_first_word_that_fits(found, called) -> None:
    assert greedy_trace.word(found, FLOOR) == called


NONE = traced(0)


def test_the_floor_is_twice_the_engines_own_worst_in_units_of_noise() -> None:
    own = [traced(9, suspect(16.0, 3.0, 8.0), suspect(0.5, 0.0)), traced(9, suspect(1.25, 1.0))]
    assert Floor.of(own, NONE) == Floor(typical=0.5, most=2 * 1.0 / 0.75)
    many = traced(90, *[suspect(3.0, 2.25)] * 9, *[suspect(3.0, 3.0)] * 30)  # elsewhere, where shapes differ at all
    assert Floor.of(own, many) == Floor(typical=0.75, most=2.0)  # nothing of the 16
    assert Floor.of([traced(9, suspect(0.5, 0.0))], NONE) == Floor(typical=0.5, most=2.0)
    assert Floor.of([traced(9)], NONE) == Floor(0.0, 2.0)
    assert greedy_trace.word(suspect(0.25, 0.25), Floor.of([traced(9)], NONE)) == "wrong"


def test_a_place_where_one_shape_alone_is_exact_tells_no_spread() -> None:
    lower_ends = traced(9, *[suspect(60.0, 9.0, 8.0, at_least=("shape 0", "shape 1"))] * 20)
    assert Floor.of([traced(9, suspect(0.5, 0.25))], lower_ends).typical == 0.25


def test_a_near_tie_is_noise_where_no_token_of_the_engines_own_has_changed() -> None:
    floor = Floor.of([traced(9)], traced(9, *[suspect(4.0, 4.0)] * 8, *[suspect(4.0, 3.75)] * 2))
    assert greedy_trace.word(suspect(0.25, 0.25, 0.25), floor) == "noise"
    assert greedy_trace.word(suspect(0.75, 0.75, 0.75), floor) == "wrong"


OWN = traced(3000, *[suspect(0.5, 0.25, 0.25)] * 30)
FLOOR_OF_OWN = Floor.of([OWN], NONE)


def test_what_the_engines_own_answers_show_is_no_fault() -> None:
    assert greedy_trace.problems(traced(3000, *[suspect(0.5, 0.5, 0.25)] * 40), OWN, FLOOR_OF_OWN) == []


def test_one_wrong_token_is_a_fault() -> None:
    problems = greedy_trace.problems(traced(3000, suspect(1.25, 1.125, 1.25)), OWN, FLOOR_OF_OWN)
    assert problems == [
        "answer 0, position 1: token 7 is 1.12 nats behind in its best shape, 3.0 times the noise there, at most 2.0"
    ]


def test_near_ties_that_are_too_frequent_are_a_fault() -> None:
    problems = greedy_trace.problems(traced(3000, *[suspect(0.5, 0.0)] * 70), OWN, FLOOR_OF_OWN)
    assert len(problems) == 1 and "70 of 3000 tokens are not the likeliest" in problems[0]


def test_the_chance_is_fishers() -> None:
    assert greedy_trace.chance(3, 4, 1, 4) == pytest.approx(17 / 70)  # the lady who tastes tea
    assert greedy_trace.chance(0, 10, 5, 10) == pytest.approx(1.0)
    assert greedy_trace.chance(0, 10, 0, 10) == pytest.approx(1.0)


def test_words_and_quantiles_are_summed_up() -> None:
    found = greedy_trace.summary(traced(10, suspect(0.5, 0.0), suspect(4.0, 3.5)), FLOOR)
    assert found["words"] == {"first": 8, "order": 1, "spread": 0, "noise": 0, "wrong": 1}
    assert found["nats_behind_as_read"]["largest"] == 4.0 and found["nats_behind_in_the_best_shape"]["median"] == 0.0
    assert greedy_trace.summary(traced(10), FLOOR)["nats_behind_as_read"] is None


def shapes(places: list) -> list[dict]:
    return [{"one": (len(before) + 0.0, True), "two": (token + 0.0, False)} for before, token in places]


def test_every_token_that_is_not_first_is_asked_about_in_its_own_context() -> None:
    prompts, answers = [[1, 2], [3]], [[5, 6], [7, 8]]
    read = [[0.0, 0.5], [0.25, 0.0]]
    found = greedy_trace.trace(prompts, answers, lambda *_: read, shapes)
    assert found["tokens"] == 4
    first, second = found["suspects"]
    assert (first["answer"], first["position"], first["token"]) == (0, 1, 6)
    assert first["behind"] == {"read": 0.5, "one": 3.0, "two": 6.0} and first["at_least"] == ["two"]
    assert (second["answer"], second["position"], second["token"]) == (1, 0, 7)


def test_the_shape_that_answers_were_made_in_is_left_out_and_others_than_the_last_token_may_be() -> None:
    prompts, answers = [[1, 2]], [[5, 6]]
    found = greedy_trace.trace(prompts, answers, lambda *_: [[0.5, 0.5]], shapes, made_in="one", last=True)
    assert found["tokens"] == 1 and [one["position"] for one in found["suspects"]] == [1]
    assert found["suspects"][0]["behind"] == {"read": 0.5, "two": 6.0}


def test_nothing_is_stepped_on_where_every_token_is_first() -> None:
    def never(places: list) -> list:
        raise AssertionError(places)

    assert greedy_trace.trace([[1]], [[2]], lambda *_: [[0.0]], never)["suspects"] == []
