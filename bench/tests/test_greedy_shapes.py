"""What is asked of an engine about tokens that it might not take."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import greedy_shapes
from fake_engine import Engine, logprobs, stand_in


@pytest.fixture(autouse=True)
def vllm(monkeypatch) -> None:
    stand_in(monkeypatch)


def behind(context: list[int], shape: str, token: int) -> float:
    found = logprobs(context, shape)
    return max(found.values()) - found[token]


def test_an_answer_is_read_token_by_token_in_its_own_context() -> None:
    found = greedy_shapes.read(Engine(), [[1, 2, 3], [4, 5]], [[6, 7], [8]])
    assert found[0] == pytest.approx([behind([1, 2, 3], "read", 6), behind([1, 2, 3, 6], "read", 7)])
    assert found[1] == pytest.approx([behind([4, 5], "read", 8)])


def test_a_place_is_stepped_on_in_four_shapes() -> None:
    places = [([1, 2, 3], max(logprobs([1, 2, 3], "decode alone"))), ([4, 5], 9)]
    found = greedy_shapes.step(Engine(), places)
    assert [set(one) for one in found] == [set(greedy_shapes.SHAPES)] * 2
    for (before, token), one in zip(places, found, strict=True):
        for shape, (nats, listed) in one.items():
            if listed:
                assert nats == pytest.approx(behind(before, shape, token)), shape
            else:
                assert nats <= behind(before, shape, token), shape


def test_a_token_that_is_not_listed_is_behind_by_at_least_the_last_that_is() -> None:
    assert greedy_shapes.behind({1: -1.0, 2: -3.0}, 2) == (2.0, True)
    assert greedy_shapes.behind({1: -1.0, 2: -3.0}, 7) == (2.0, False)
    forced = {token: -float(token) for token in range(greedy_shapes.LIKELIEST)} | {99: -60.0}
    assert greedy_shapes.behind(forced, 70) == (greedy_shapes.LIKELIEST - 1.0, False)  # not by 60
    assert greedy_shapes.behind(forced, 99) == (60.0, True)


def test_log_probabilities_from_after_tokens_were_forbidden_are_refused() -> None:
    with pytest.raises(ValueError, match="must give raw ones"):
        greedy_shapes.step(Engine(masked=True), [([1, 2, 3], 4)])
    with pytest.raises(ValueError, match="must give raw ones"):
        greedy_shapes.behind({1: 0.0, 2: float("-inf")}, 1)
