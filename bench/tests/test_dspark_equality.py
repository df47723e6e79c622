"""How differences between two decodings are found and judged."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import dspark_equality as equality


def answered(tokens: list[int], *logprobs: dict[str, float]) -> dict:
    return {"tokens": tokens, "logprobs": list(logprobs)}


SURE, TIE = {"1": -0.1, "2": -4.0}, {"1": -0.700, "2": -0.703}


def test_a_near_tie_is_explained_and_a_clear_choice_is_not() -> None:
    reference = [answered([1, 1], SURE, SURE), answered([1, 1], TIE, SURE), answered([1, 1], SURE, SURE)]
    other = [answered([1, 1]), answered([2, 9]), answered([1, 2])]
    found = equality.compare(reference, other, largest=0.002)
    assert (found["prompts"], found["equal"], found["near_ties"], found["unexplained"]) == (3, 1, 1, 1)
    near, clear = found["differences"]
    assert (near["prompt"], near["position"], near["near_tie"]) == (1, 0, True)
    assert (clear["prompt"], clear["position"], clear["near_tie"]) == (2, 1, False)


def test_a_token_that_was_not_even_likely_is_no_near_tie() -> None:
    found = equality.compare([answered([1], SURE)], [answered([7])], largest=100.0)
    assert found["unexplained"] == 1 and found["differences"][0]["margin"] is None


def test_an_answer_that_is_shorter_differs() -> None:
    assert equality.compare([answered([1, 1], SURE, SURE)], [answered([1])], 100.0)["unexplained"] == 1


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


def test_the_conclusion_counts_accepted_tokens() -> None:
    plain = {"answers": {"together": [answered([1], SURE)], "alone": [answered([1], SURE)]}}
    counters = {"vllm:spec_decode_num_drafts": 4, "vllm:spec_decode_num_accepted_tokens": 6}
    dspark = {"answers": {"together": [answered([1])]}, "counters": counters}
    for side in (plain, dspark):
        side |= {"seconds": 1.0, "ready_seconds": 2.0}
    found = equality.conclude(plain, dspark)
    assert found["dspark_against_plain"]["equal"] == 1
    assert found["acceptance"]["tokens_per_step"] == 2.5
