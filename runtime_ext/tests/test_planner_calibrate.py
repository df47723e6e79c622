"""Constants solved for from a server: it is then predicted exactly, and impossible figures are refused."""

from dataclasses import replace

import pytest
from planner_support import MODEL

from moet_w2.errors import ConfigError
from moet_w2.planner import predict
from moet_w2.planner.calibrate import Measured, calibrated
from moet_w2.planner.costs import Costs
from moet_w2.planner.machine import GIB, card
from moet_w2.planner.placements import Assumptions
from moet_w2.planner.settings import Settings

MAPPED = (43, 44, 45)
TRUTH = Assumptions(Costs(layer_us=220.0), runtime_bytes=int(1.5 * GIB), tokens_per_step=1.8)


def seen(mapped=MAPPED):
    """What a server would show if TRUTH held."""
    found = predict.predict(MODEL, card(), Settings(), mapped, context=1024, given=TRUTH)
    return Measured(found.memory.kv_bytes, found.decode[1].tokens_per_s, 1.8)


def test_the_constants_that_made_the_figures_are_found():
    given = calibrated(MODEL, card(), Settings(), MAPPED, seen())
    assert given.runtime_bytes == TRUTH.runtime_bytes
    assert given.costs.layer_us == pytest.approx(220.0) and given.costs.step_us == Costs().step_us


def test_another_placement_is_predicted_with_them():
    given = calibrated(MODEL, card(), Settings(), MAPPED, seen())
    for mapped in ((), (42, 43, 44, 45)):
        found = predict.predict(MODEL, card(), Settings(), mapped, context=1024, given=given)
        truth = predict.predict(MODEL, card(), Settings(), mapped, context=1024, given=TRUTH)
        assert found.memory == truth.memory
        assert found.decode[4].tokens_per_s == pytest.approx(truth.decode[4].tokens_per_s)


def test_bytes_that_were_counted_do_not_end_in_the_fixed_time():
    counted = {1: 1e8}
    found = predict.predict(MODEL, card(), Settings(), MAPPED, context=1024, given=TRUTH, link_bytes=counted)
    figures = Measured(found.memory.kv_bytes, found.decode[1].tokens_per_s, 1.8, link_bytes=counted[1])
    assert calibrated(MODEL, card(), Settings(), MAPPED, figures).costs.layer_us == pytest.approx(220.0)
    with pytest.raises(ConfigError, match="shorter than"):  # random experts would be more than the step's time
        calibrated(MODEL, card(link_gbs=10), Settings(), MAPPED, replace(figures, link_bytes=None))
    # Four requests were not counted, so they read random experts.
    assert found.decode[4].link_bytes > 4e8


def test_a_short_step_leaves_nothing_to_layers():
    truth = replace(TRUTH, costs=Costs(layer_us=0.0, step_us=300.0))
    rate = predict.predict(MODEL, card(), Settings(), MAPPED, context=1024, given=truth).decode[1].tokens_per_s
    given = calibrated(MODEL, card(), Settings(), MAPPED, replace(seen(), tokens_per_s=rate))
    assert given.costs.step_us == pytest.approx(300.0) and given.costs.layer_us == pytest.approx(0.0)


def first_token(launch_us, prompt=768):
    """What is seen of a host that takes so long to launch a layer of prefill."""
    truth = replace(TRUTH, costs=replace(TRUTH.costs, prefill_launch_us=launch_us))
    found = predict.predict(MODEL, card(), Settings(), MAPPED, context=1024, prompts=(prompt,), given=truth)
    seconds = found.prefill_seconds[prompt] + found.decode[1].step_seconds
    return replace(seen(), prompt_tokens=prompt, first_token_seconds=seconds)


def test_a_hosts_launches_are_found_in_the_first_token_of_a_short_prompt():
    for launch_us in (9000.0, 30000.0):
        given = calibrated(MODEL, card(), Settings(), MAPPED, first_token(launch_us))
        assert given.costs.prefill_launch_us == pytest.approx(launch_us)


@pytest.mark.parametrize("figures", [first_token(10.0), first_token(9000.0, prompt=32), first_token(9000.0, 5000)])
def test_launches_that_do_not_show_stay_as_assumed(figures):
    # The card itself takes longer; a graph launches all of it; and a prompt of several chunks is not only launches.
    given = calibrated(MODEL, card(), Settings(), MAPPED, figures)
    assert given.costs.prefill_launch_us == Costs().prefill_launch_us


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_bytes": 80 * GIB}, "larger than"),
        ({"tokens_per_s": 1e6}, "shorter than"),
        ({"tokens_per_s": 0.0}, "no decode"),
        ({"tokens_per_step": 0.5}, "no decode"),
    ],
)
def test_figures_that_cannot_be_are_refused(change, named):
    with pytest.raises(ConfigError, match=named):
        calibrated(MODEL, card(), Settings(), MAPPED, replace(seen(), **change))
