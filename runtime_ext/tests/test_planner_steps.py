"""A predicted decode step of eight layers against the one that was measured."""

from dataclasses import replace

import pytest
from planner_support import result

from moet_w2.planner import costs, speed
from moet_w2.planner.machine import card
from moet_w2.planner.model import FLASH, from_config
from moet_w2.planner.settings import Settings
from moet_w2.planner.speed import Load


@pytest.mark.parametrize("requests", [1, 4])
def test_a_step_of_eight_layers_takes_what_was_measured(requests):
    rates = result("decode_rate_h200")
    ratios = [0 if layer < 2 else 128 if layer % 2 else 4 for layer in range(rates["layers"])]
    model = from_config(FLASH | {"num_hidden_layers": rates["layers"], "compress_ratios": ratios}, draft_layers=0)
    h200 = replace(card(), hbm_gbs=costs.MEASURED_HBM_GBS)
    settings = Settings(speculative=0, correction_bytes=0)
    found = speed.decode(model, h200, settings, (), Load(requests, rates["prompt_tokens"] + rates["tokens"] // 2))
    measured = rates["sides"]["ours-0-mapped"]["requests"][str(requests)]["step_ms"] * 1e-3
    assert found.step_seconds == pytest.approx(measured, rel=0.05)
    assert found.tokens_per_s == pytest.approx(requests / measured, rel=0.05)
