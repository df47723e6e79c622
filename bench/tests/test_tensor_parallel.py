"""How one GPU's planes and answers are held against two GPUs'."""

import copy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime_ext" / "tests"))
import tensor_parallel
from generators import device_layer

from moet_w2.audit import Audit
from moet_w2.config import W2Config
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import Shard
from moet_w2.placement import plan

SERVING = {"kv_cache_tokens": 128, "max_model_len": 64}
SURE = {"1": -0.1, "2": -4.0}
TIE = {"1": -0.700, "2": -0.703}


def document(rank: int, size: int, width: int) -> dict:
    """An audit as a rank writes it, of two layers on a GPU of its own."""
    device = {"type": "cuda", "name": "test", "pci": f"0000:0{rank}:00.0", "numa": None}
    record = Audit(None, plan(W2Config(), 2), device, shard=Shard(rank, size), server=f"start of {size}")
    layers = [device_layer(LayerGeometry(2, 256, width), key) for key in (0, 1)]
    for layer in layers:
        record.created(layer, layer.geometry.nbytes)
    for layer in layers:
        record.loaded(layer, 0)
    record.started(SERVING)
    return record.document()


@pytest.fixture(scope="module")
def one() -> list[dict]:
    return [document(0, 1, 256)]


@pytest.fixture
def two() -> list[dict]:
    return [document(rank, 2, 128) for rank in (0, 1)]


def test_ranks_that_hold_half_of_every_layer_pass(one, two) -> None:
    found = tensor_parallel.planes(one, two)
    assert found["problems"] == []
    assert [rank["w2_bytes"] * 2 for rank in found["ranks"]] == [found["one_gpu"]["w2_bytes"]] * 2


def whole_layers(two: list[dict]) -> None:
    two[1] |= {name: document(1, 2, 256)[name] for name in ("layers", "w2_bytes")}


def one_gpu_for_both(two: list[dict]) -> None:
    two[1]["device"] = two[0]["device"]


def not_ready(two: list[dict]) -> None:
    two[1]["state"] = "loaded"


def held_twice(two: list[dict]) -> None:
    two[0]["redundant_gpu_w2_bytes"] = 5


def placed_otherwise(two: list[dict]) -> None:
    two[1]["layers"][1]["placement"] = "mapped"


def of_another_start(two: list[dict]) -> None:
    two[1]["tensor_parallel"]["server"] = "another"


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (whole_layers, "w2_bytes of rank 1"),
        (one_gpu_for_both, "two ranks share one GPU"),
        (not_ready, "state is loaded"),
        (held_twice, "redundant GPU W2 bytes: 5"),
        (placed_otherwise, "layer 1 of rank 1"),
        (of_another_start, "rank 1 is of another start"),
    ],
)
def test_planes_that_are_not_shared_out_are_found(one, two, spoil, named) -> None:
    two = copy.deepcopy(two)
    spoil(two)
    problems = tensor_parallel.planes(one, two)["problems"]
    assert any(named in problem for problem in problems), problems


def side(*prompts: tuple[list[int], list[dict[str, float]]]) -> dict:
    answered = [{"tokens": tokens, "logprobs": logprobs} for tokens, logprobs in prompts]
    return {"ready_seconds": 1.0, "seconds": 2.0, "answers": {"together": answered, "alone": answered}}


def judged(first: dict, second: dict, problems: tuple[str, ...] = ()) -> list[str]:
    return tensor_parallel.conclude({"one": first, "two": second}, {"problems": list(problems)})["problems"]


def test_the_same_answers_pass_and_so_does_a_near_tie() -> None:
    rounded = {token: value + 0.002 for token, value in SURE.items()}
    first = side(([1, 1], [TIE, SURE]), ([1], [SURE]))
    assert judged(first, first) == []
    assert judged(first, side(([2, 2], [{"1": -0.703, "2": -0.700}, SURE]), ([1], [rounded]))) == []


def test_log_probabilities_that_are_apart_are_a_fault() -> None:
    far = {token: value - 3 * tensor_parallel.TOLERANCE["median"] for token, value in SURE.items()}
    assert any("median" in line for line in judged(side(([1], [SURE])), side(([1], [far]))))


def test_another_token_without_a_near_tie_is_a_fault() -> None:
    first, second = side(([1, 1], [SURE, SURE])), side(([1, 2], [SURE, {"2": -0.1, "1": -4.0}]))
    assert any("no near tie explains it" in line for line in judged(first, second))


def test_the_largest_noise_explains_nothing() -> None:
    calm, wild = [SURE] * 149, {"1": -0.1, "2": -20.0}  # one of 300 log-probabilities is off by 16 nats
    first = side(([1] * 150, [*calm, SURE]), ([1], [SURE]))
    second = side(([1] * 150, [*calm, wild]), ([2], [{"2": -0.1, "1": -4.0}]))
    assert any("1 prompts are answered otherwise" in line for line in judged(first, second))


def test_nothing_to_compare_is_a_fault() -> None:
    assert any("no token has" in line for line in judged(side(([1], [SURE])), side(([2], [{"3": -0.1}]))))


def test_what_is_wrong_with_the_planes_is_wrong_with_the_whole() -> None:
    first = side(([1], [SURE]))
    assert judged(first, first, ("half a layer",)) == ["half a layer"]


def test_a_planted_fault_must_break_the_tolerance() -> None:
    first = side(([1], [SURE]))
    far = side(([1], [{token: value - 1 for token, value in SURE.items()}]))
    sides = {"one": first, "two": first, "control": far}
    found = tensor_parallel.conclude(sides, {"problems": []})
    assert found["problems"] == [] and found["distances_of_logprobs_with_planted_fault"]["median"] == 1.0
    blind = tensor_parallel.conclude(sides | {"control": first}, {"problems": []})
    assert blind["problems"] == ["the planted fault is within the tolerance"]


def test_only_what_follows_the_same_tokens_is_compared() -> None:
    first = side(([1, 1, 5], [SURE, TIE, SURE]))["answers"]["together"]
    second = side(([1, 2, 5], [{"1": -0.1, "3": 0.0}, {"1": -0.9, "2": -0.703}, {"1": -9.0}]))["answers"]["together"]
    found = tensor_parallel.distances(first, second)
    assert found["values"] == 3 and found["largest"] == pytest.approx(0.2)  # nothing after the second token
