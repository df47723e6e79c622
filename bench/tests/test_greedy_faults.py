"""Wrong tokens that are planted into answers, and how many of them are found."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import greedy_faults
from greedy_trace import Floor

FLOOR = Floor(typical=0.5, most=4.0)
LIKELIEST = {"5": -0.1, "9": -3.0, "7": -2.0}


def answered(count: int) -> list[dict]:
    return [{"tokens": [5, 5, 5, 5], "logprobs": [LIKELIEST] * 4} for _ in range(count)]


def test_kinds_take_turns_and_every_planted_token_is_wrong() -> None:
    planted = greedy_faults.plant(answered(30), vocabulary=100, seed=1)
    assert [one["kind"] for one in planted] == list(greedy_faults.KINDS) * 10
    for one in planted:
        *before, wrong = one["tokens"]
        assert before == [5] * len(before) and 1 <= len(before) < 4 and wrong != 5
        assert wrong == {"second": 7, "follows": 6}.get(one["kind"], wrong) and wrong < 100
    assert planted == greedy_faults.plant(answered(30), vocabulary=100, seed=1)


def test_a_token_that_the_model_follows_itself_is_no_place_for_one_that_follows() -> None:
    counting = {"tokens": [1, 2, 3], "logprobs": [{str(token): -0.1, "9": -3.0} for token in (1, 2, 3)]}
    planted = greedy_faults.plant([counting] * 2, vocabulary=100, seed=1)
    assert [one["kind"] for one in planted] == ["second"]


def test_planted_tokens_are_counted_by_what_they_are_called() -> None:
    planted = greedy_faults.plant(answered(6), vocabulary=100, seed=1)
    suspects = [
        {"answer": number, "position": 1, "token": 0, "behind": {"read": nats, "step": nats}, "at_least": []}
        for number, nats in ((0, 1.0), (1, 9.0), (2, 9.0), (4, 9.0), (5, 9.0))  # the fourth is first, where read
    ]
    found = greedy_faults.found(planted, {"tokens": 6, "suspects": suspects}, FLOOR)
    assert found["second"] == {"planted": 2, "found": 0, "words": {"noise": 1, "first": 1}}
    assert found["follows"]["found"] == found["random"]["found"] == 2
    assert greedy_faults.problems(found) == []


def test_a_check_that_misses_random_tokens_is_blind() -> None:
    planted = greedy_faults.plant(answered(30), vocabulary=100, seed=1)
    found = greedy_faults.found(planted, {"tokens": 30, "suspects": []}, FLOOR)
    assert greedy_faults.problems(found) == ["the check finds 0 of 10 random tokens planted, at least 90% asked"]
    assert greedy_faults.problems(greedy_faults.found([], {"tokens": 0, "suspects": []}, FLOOR))
