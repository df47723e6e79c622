"""Fixed times and predicted steps against the results that they were solved from."""

from dataclasses import replace

import pytest
from planner_support import MODEL, result

from moet_w2.planner import costs, speed
from moet_w2.planner.machine import card
from moet_w2.planner.model import FLASH, from_config
from moet_w2.planner.settings import Settings
from moet_w2.planner.speed import Load

H200 = replace(card(), hbm_gbs=costs.MEASURED_HBM_GBS, sm=9)
SHORT = (result("decode_rate_h200"), result("decode_rate_peers_h200"))
"""Eight layers on two hosts."""


def eight(requests, figures=costs.MEASURED):
    """A predicted step of eight layers without speculation."""
    layers = SHORT[0]["layers"]
    ratios = [0 if layer < 2 else 128 if layer % 2 else 4 for layer in range(layers)]
    model = from_config(FLASH | {"num_hidden_layers": layers, "compress_ratios": ratios}, draft_layers=0)
    load = Load(requests, SHORT[0]["prompt_tokens"] + SHORT[0]["tokens"] // 2)
    return speed.decode(model, H200, Settings(speculative=0, correction_bytes=0), (), load, figures)


def resident(requests, figures=costs.MEASURED):
    """A predicted step of the server with all layers in device memory, and the seconds that it took."""
    phase = result("serving_h200-resident")["phases"][f"decode_{requests}x1024"]
    per_step, counters = phase["speculation"]["tokens_per_step"], phase["counters"]
    hits = counters["moet_correction_hits_total"] / counters["moet_correction_routings_total"]
    load = Load(requests, 1024, per_step, hits)
    measured = requests * per_step / phase["client"]["decode_tokens_per_s"]
    return speed.decode(MODEL, H200, Settings(), (), load, figures), measured


def measured_eight(requests, what="step_ms"):
    """Seconds of eight layers, on each host."""
    return [each["sides"]["ours-0-mapped"]["requests"][str(requests)][what] for each in SHORT]


def test_the_fixed_times_are_what_the_results_leave():
    free = replace(costs.MEASURED, layer_us=0.0, step_us=0.0)
    few = sum(measured_eight(1)) / 2 * 1e3 - eight(1, free).step_seconds * 1e6
    step, measured = resident(1, free)
    many = (measured - step.step_seconds) * 1e6
    layer = (many - few) / (MODEL.layers - SHORT[0]["layers"])
    assert costs.LAYER_US == pytest.approx(layer, rel=0.01)
    assert costs.STEP_US == pytest.approx(few - SHORT[0]["layers"] * layer, rel=0.01)


def test_the_launches_of_prefill_are_what_the_results_leave():
    first, step = measured_eight(1, "first_token_seconds"), measured_eight(1)
    found = [(one * 1e6 - ms * 1e3) / SHORT[0]["layers"] for one, ms in zip(first, step, strict=True)]
    assert costs.PREFILL_LAUNCH_US == pytest.approx(sum(found) / 2, rel=0.01)


@pytest.mark.parametrize("requests", [1, 4])
def test_a_step_of_eight_layers_takes_what_two_hosts_took_on_average(requests):
    slow, fast = sorted(measured_eight(requests), reverse=True)
    assert 1.05 < slow / fast < 1.15  # so no constant is within 5% of both
    assert eight(requests).step_seconds == pytest.approx((slow + fast) / 2 * 1e-3, rel=0.05)


@pytest.mark.parametrize(("requests", "bound"), [(1, 0.01), (4, 0.06)])
def test_a_step_of_all_layers_takes_what_was_measured(requests, bound):
    # One request was fitted to. With four, the last steps had fewer requests in them than are
    # predicted, which is a part of the difference.
    step, measured = resident(requests)
    assert step.step_seconds == pytest.approx(measured, rel=bound)
