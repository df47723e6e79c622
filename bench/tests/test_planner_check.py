"""The planner beside servers: figures that a model made are found again; a server that did otherwise shows it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import facts
import link_reads
import planner_check

from moet_w2 import recipe
from moet_w2.planner import predict
from moet_w2.planner.costs import Costs
from moet_w2.planner.machine import GIB, Machine
from moet_w2.planner.placements import Assumptions

RECIPES = facts.ROOT / "bench" / "recipes"
TRUTH = Assumptions(Costs(layer_us=300.0, prefill_launch_us=5000.0), runtime_bytes=2 * GIB, tokens_per_step=1.2)


def served(folder, name, slower=1.0, link_bytes=None, phase=None):
    """A result file of a server for which TRUTH holds, or that decodes more slowly.

    Args:
        folder: where the file is written.
        name: the configuration.
        slower: how many times as long a step takes.
        link_bytes: bytes that a step reads over the link, by requests; None: those of random experts.
        phase: what stands in both decode phases beside the client's figures.
    """
    loaded = recipe.load(RECIPES / f"{name}.yaml")
    machine = Machine(int(loaded.device.vram_gib * GIB), 1 << 40, planner_check.HBM_GBS, planner_check.LINK_GBS, sm=9)
    model, settings, mapped = predict.of_recipe(loaded)
    made = predict.predict(
        model, machine, settings, mapped, context=1024, prompts=(512, 32768), given=TRUTH, link_bytes=link_bytes
    )
    phases = {
        f"decode_{count}x1024": {
            "client": {
                "decode_tokens_per_s": step.tokens_per_s / slower,
                "tokens": [1024] * count,
                "prompt_tokens": [512] * count,
                "first_token_seconds": [made.prefill_seconds[512] + step.step_seconds] * count,
            },
            "speculation": {"tokens_per_step": 1.2},
            **(phase(count) if phase else {}),
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
    assert found["constants"]["prefill_launch_us"] == pytest.approx(5000.0)
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


def decodes(found, configuration="h200-512k"):
    """How far decode is off, with the planner's constants and with those of the first server."""
    return [
        (row["off_by"], row["off_by_with_constants"])
        for row in found["rows"]
        if row["configuration"] == configuration and row["what"].startswith("decode")
    ]


def sources(found):
    """Where the bytes over the link are from."""
    return {(each["configuration"], each["requests"]): each["link_bytes_from"] for each in found["workload"]}


LESS = {1: 3e8, 4: 9e8}
"""Bytes over the link of a step whose experts are far fewer than random ones."""


def counters(count):
    return {"counters": {"moet_mapped_read_bytes_total": 100 * LESS[count], "moet_steps_total": 100.0}}


def test_what_a_step_was_counted_to_read_is_what_is_predicted(tmp_path):
    resident = served(tmp_path, "h200-resident")
    counted = served(tmp_path, "h200-512k", link_bytes=LESS, phase=counters)
    found = planner_check.compare([resident, counted], planner_check.HBM_GBS, planner_check.LINK_GBS)
    assert all(off == pytest.approx(0, abs=1e-6) for _, off in decodes(found))
    assert sources(found)["h200-512k", 4] == "counted exactly"
    assert sources(found)["h200-resident", 1] == "no mapped layers"
    # Without the counter random experts are taken, which are more, so the server seems faster than it should be.
    uncounted = served(tmp_path, "h200-512k", link_bytes=LESS)
    found = planner_check.compare([resident, uncounted], planner_check.HBM_GBS, planner_check.LINK_GBS)
    assert all(off < -0.1 for _, off in decodes(found)) and sources(found)["h200-512k", 4] == planner_check.RANDOM


def test_constants_are_solved_for_with_what_was_counted(tmp_path):
    first = served(tmp_path, "h200-512k", link_bytes=LESS, phase=counters)
    found = planner_check.compare([first], planner_check.HBM_GBS, planner_check.LINK_GBS)
    assert found["constants"]["layer_us"] == pytest.approx(300.0)


def gauges(count):
    """What NVML samples while LESS is read: all that the link transfers, and promotions among it."""
    steps, raw, promoted = 1024 / 1.2, 32 * 16 / 8 * 128 / 130, 5e9
    mean = (steps * LESS[count] + promoted) / 20 * raw / planner_check.LINK_GBS / 1e9
    gpu = {"pcie_to_gpu_gb_per_s": {"mean": mean, "most": raw}, "link": {"generation": 5, "width": 16}}
    grown = {"moet_correction_read_bytes_total": promoted, "moet_mapped_read_estimated_bytes_total": 1e15}
    return {"phase_seconds": 20.0, "gpu": gpu, "counters": grown}


def test_an_old_result_falls_back_to_samples_and_says_so(tmp_path):
    servers = [served(tmp_path, "h200-resident"), served(tmp_path, "h200-512k", link_bytes=LESS, phase=gauges)]
    found = planner_check.compare(servers, planner_check.HBM_GBS, planner_check.LINK_GBS)
    assert all(off == pytest.approx(0, abs=1e-6) for _, off in decodes(found))
    assert sources(found)["h200-512k", 1] == planner_check.SAMPLED
    assert "sampled by NVML, protocol overhead included" in planner_check.table(found)


@pytest.mark.parametrize(
    "phase",
    [
        {},
        {"gpu": None},
        {"gpu": {"pcie_to_gpu_gb_per_s": None, "link": {"generation": 5, "width": 16}}},
        {"gpu": {"pcie_to_gpu_gb_per_s": {"mean": 1.0}, "link": None}},
        {"gpu": {"pcie_to_gpu_gb_per_s": {"mean": 1.0}, "link": {"generation": 6, "width": 16}}},
    ],
)
def test_without_samples_nothing_is_made_up(phase):
    assert link_reads.sampled({"phase_seconds": 1.0} | phase, 10.0, 51.3) is None


def test_a_counter_that_did_not_grow_is_none():
    assert link_reads.counted({"moet_mapped_read_bytes_total": 0.0, "moet_steps_total": 5.0}) is None
    assert link_reads.counted({"moet_mapped_read_estimated_bytes_total": 9.0, "moet_steps_total": 5.0}) is None
    assert link_reads.counted({"moet_mapped_read_bytes_total": 9.0, "moet_steps_total": 3.0}) == 3.0


def test_routings_that_found_fp4_are_taken_as_they_were_counted(tmp_path):
    counts = {"moet_correction_routings_total": 1000.0, "moet_correction_hits_total": 250.0}
    server = served(tmp_path, "h200-resident", phase=lambda _: {"counters": counts})
    machine = Machine(server.cuda_bytes, 1 << 40, planner_check.HBM_GBS, planner_check.LINK_GBS, sm=9)
    found = server.predicted(machine, TRUTH)["decode 4x, tokens/s"]
    assert server.workload("4", TRUTH).correction_hits == 0.25
    assert found < server.measured["decode 4x, tokens/s"]  # as few as there are slots, by default


def test_what_the_planner_was_fitted_to_is_marked():
    results = [facts.ROOT / "bench" / "results" / f"serving_{name}.json" for name in ("h200-300k", "h200-512k")]
    servers = [planner_check.Server(path, RECIPES) for path in results]
    servers[0].document[facts.DIGEST] = next(
        key for key, names in planner_check.FITTED.items() if "prefill of 250000, s" in names
    )
    servers[1].document[facts.DIGEST] = "another measurement"
    found = planner_check.compare(servers, planner_check.HBM_GBS, planner_check.LINK_GBS)
    marked = {(row["configuration"], row["what"]) for row in found["rows"] if row["fitted"]}
    assert marked == {("h200-300k", "prefill of 250000, s")}
    assert "fitted" in planner_check.table(found)


def rounded(document):
    """As JSON, with nine digits."""
    return json.loads(json.dumps(document), parse_float=lambda text: float(f"{float(text):.9g}"))


def test_the_committed_comparison_is_what_the_planner_says_of_the_committed_results():
    folder = facts.ROOT / "bench" / "results"
    kept = json.loads((folder / "planner_h200.json").read_text())
    names = list(dict.fromkeys(row["configuration"] for row in kept["rows"]))
    servers = [planner_check.Server(folder / f"serving_{name}.json", RECIPES) for name in names]
    found = planner_check.compare(servers, **kept["assumed"])
    for name in ("constants", "workload", "rows"):
        assert rounded(found[name]) == rounded(kept[name]), f"{name}: run bench/planner_check.py with --out again"


def test_rates_are_within_15_percent_of_what_was_measured():
    kept = json.loads((facts.ROOT / "bench" / "results" / "planner_h200.json").read_text())
    rates = {(row["configuration"], row["what"]): row for row in kept["rows"] if row["what"] != "KV tokens"}
    assert len(rates) == 9 and sum(row["fitted"] for row in rates.values()) == 2
    assert all(abs(row["off_by"]) < 0.15 for row in rates.values())
