"""The planner beside servers: figures that a model made are found again; a server that did otherwise shows it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import facts
import planner_check

from moet_w2 import recipe
from moet_w2.planner import predict
from moet_w2.planner.costs import Costs
from moet_w2.planner.machine import GIB, Machine
from moet_w2.planner.placements import Assumptions

RECIPES = facts.ROOT / "bench" / "recipes"
TRUTH = Assumptions(Costs(layer_us=300.0), runtime_bytes=2 * GIB, tokens_per_step=1.2)


def served(folder, name, slower=1.0):
    """A result file of a server for which TRUTH holds, or that decodes more slowly."""
    loaded = recipe.load(RECIPES / f"{name}.yaml")
    machine = Machine(int(loaded.device.vram_gib * GIB), 1 << 40, planner_check.HBM_GBS, planner_check.LINK_GBS, sm=9)
    model, settings, mapped = predict.of_recipe(loaded)
    made = predict.predict(model, machine, settings, mapped, context=1024, prompts=(32768,), given=TRUTH)
    phases = {
        f"decode_{count}x1024": {
            "client": {"decode_tokens_per_s": step.tokens_per_s / slower},
            "speculation": {"tokens_per_step": 1.2},
        }
        for count, step in made.decode.items()
    }
    client = {"prompt_tokens": 32768, "first_token_seconds": made.prefill_seconds[32768]}
    phases["prefill_32768"] = {"client": client}
    phases["prefill_250000"] = {"skipped": "no time was left"}
    path = folder / f"{name}.json"
    reported = {"kv_cache_tokens": made.memory.kv_tokens, "kv_cache_gib": made.memory.kv_bytes / GIB}
    path.write_text(json.dumps({"configuration": name, "reported": reported, "phases": phases}))
    return planner_check.Server(path, RECIPES)


def test_constants_of_one_server_predict_the_others(tmp_path):
    names = ("h200-resident", "h200-300k", "h200-512k")
    found = planner_check.compare(
        [served(tmp_path, name) for name in names], planner_check.HBM_GBS, planner_check.LINK_GBS
    )
    assert found["constants"]["layer_us"] == pytest.approx(300.0)
    assert len(found["rows"]) == 3 * 4
    assert all(abs(row["off_by_with_constants"]) < 1e-3 for row in found["rows"])
    assert any(abs(row["off_by"]) > 0.05 for row in found["rows"])
    assert "h200-512k" in planner_check.table(found)


def test_a_server_that_is_slower_than_predicted_shows_it(tmp_path):
    servers = [served(tmp_path, "h200-resident"), served(tmp_path, "h200-512k", slower=1.5)]
    found = planner_check.compare(servers, planner_check.HBM_GBS, planner_check.LINK_GBS)
    rows = {(row["configuration"], row["what"]): row for row in found["rows"]}
    assert rows["h200-512k", "decode 4x, tokens/s"]["off_by_with_constants"] == pytest.approx(0.5, rel=0.01)


def test_the_prediction_is_for_the_acceptance_that_was_measured(tmp_path):
    server = served(tmp_path, "h200-resident")
    machine = Machine(server.cuda_bytes, 1 << 40, planner_check.HBM_GBS, planner_check.LINK_GBS, sm=9)
    slow = server.predicted(machine, TRUTH)
    server.tokens_per_step = {"1": 2.4, "4": 2.4}
    fast = server.predicted(machine, replace(TRUTH, tokens_per_step=9.0))
    assert fast["decode 1x, tokens/s"] == pytest.approx(2 * slow["decode 1x, tokens/s"])
