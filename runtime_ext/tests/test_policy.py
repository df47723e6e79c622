import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moet_w2.correction.policy import Moves, Rules, decayed, decide, warmed


@st.composite
def situations(draw):
    layers, experts = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    number = layers * experts
    heat = numpy.array(draw(st.lists(st.integers(0, 9), min_size=number, max_size=number)), dtype=float)
    eligible = numpy.array(draw(st.lists(st.booleans(), min_size=layers, max_size=layers)))
    held = numpy.array(draw(st.lists(st.booleans(), min_size=number, max_size=number))).reshape(layers, experts)
    held &= eligible[:, None]
    capacity = draw(st.integers(int(held.sum()), number + 2))
    rules = Rules(capacity, draw(st.integers(0, 5)), draw(st.sampled_from([0.0, 0.25, 1.0])))
    return heat.reshape(layers, experts), held, eligible, rules


@given(situations())
@settings(max_examples=500, deadline=None)
def test_a_pass_keeps_every_rule(situation) -> None:
    heat, held, eligible, rules = situation
    before = (heat.copy(), held.copy())
    moves = decide(heat, held, eligible, rules)
    assert (heat == before[0]).all() and (held == before[1]).all()  # pure
    assert moves == decide(heat, held, eligible, rules)  # deterministic
    assert len(moves.promote) <= rules.most_moves and len(moves.evict) <= len(moves.promote)
    assert len(set(moves.promote)) == len(moves.promote) and len(set(moves.evict)) == len(moves.evict)
    for layer, expert in moves.promote:
        assert eligible[layer] and not held[layer, expert] and heat[layer, expert] > 0
    for layer, expert in moves.evict:
        assert held[layer, expert]
    assert held.sum() - len(moves.evict) + len(moves.promote) <= rules.capacity
    free = rules.capacity - held.sum()
    swaps = moves.promote[len(moves.promote) - len(moves.evict) :]
    for newcomer, leaver in zip(swaps, moves.evict, strict=True):
        assert heat[newcomer] > heat[leaver] * (1 + rules.hysteresis)
    assert not moves.evict or len(moves.promote) - len(moves.evict) == free  # no swap while a slot is free
    for hot in moves.promote:
        cooler = [e for e in moves.promote if heat[e] < heat[hot]]
        assert all(moves.promote.index(hot) < moves.promote.index(e) for e in cooler)


@given(situations())
@settings(max_examples=200, deadline=None)
def test_a_second_pass_over_the_same_heat_settles(situation) -> None:
    heat, held, eligible, rules = situation
    for _ in range(50):
        moves = decide(heat, held, eligible, rules)
        if moves == Moves((), ()):
            return
        for expert in moves.evict:
            held[expert] = False
        for expert in moves.promote:
            held[expert] = True
    raise AssertionError("experts trade places for ever")


def test_every_routing_counts_and_no_window_is_dropped() -> None:
    zero = numpy.zeros((1, 3))
    once = warmed(zero, numpy.array([[1, 5, 0]]), "freq", 0.0, 60.0)
    assert once.tolist() == [[1.0, 5.0, 0.0]]
    assert warmed(once, numpy.array([[2, 0, 0]]), "freq", 0.0, 60.0).tolist() == [[3.0, 5.0, 0.0]]


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(1, 100))
def test_decay_is_by_time_and_windows_merge(first: float, second: float, half_life: float) -> None:
    heat = numpy.array([[8.0, 1.0]])
    split = decayed(decayed(heat, first, half_life), second, half_life)
    assert split == pytest.approx(decayed(heat, first + second, half_life))
    assert decayed(heat, half_life, half_life) == pytest.approx(heat / 2)


def test_lru_knows_only_the_last_time() -> None:
    heat = warmed(numpy.zeros((1, 3)), numpy.array([[9, 1, 0]]), "lru", 1.0, 60.0)
    heat = warmed(heat, numpy.array([[0, 1, 0]]), "lru", 60.0, 60.0)
    assert heat.tolist() == [[0.5, 1.0, 0.0]]


def test_lru_swaps_for_who_was_routed_a_third_of_the_half_life_later() -> None:
    resident, rules = numpy.array([[True, False]]), Rules(1, 1)
    heat = warmed(numpy.zeros((1, 2)), numpy.array([[5, 0]]), "lru", 0.0, 60.0)
    for seconds, swaps in ((15.0, False), (25.0, True)):
        later = warmed(heat, numpy.array([[0, 1]]), "lru", seconds, 60.0)
        moves = decide(later, resident, numpy.ones(1, bool), rules)
        assert bool(moves.evict) is swaps, seconds


def test_ties_go_to_the_lower_layer_and_expert() -> None:
    moves = decide(numpy.ones((2, 2)), numpy.zeros((2, 2), bool), numpy.ones(2, bool), Rules(3, 3))
    assert moves.promote == ((0, 0), (0, 1), (1, 0))
