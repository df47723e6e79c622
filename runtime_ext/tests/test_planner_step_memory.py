"""What a step takes, and what stays free while the longest prompt runs: against one H200, and for every recipe."""

from dataclasses import replace

import pytest
from hypothesis import given
from planner_support import MODEL, RECIPES, WISHES

from moet_w2 import cli, recipe
from moet_w2.errors import RecipeError
from moet_w2.planner import memory, predict, step_memory
from moet_w2.planner.machine import GIB, Machine
from moet_w2.planner.settings import Settings

OLD = {"logits_bytes": 512 << 20, "graphs_counted": False}
"""What the first servers of all layers ran with: vLLM's default, and a variable that their recipes set."""
SERVED = {
    "300k": (Settings(300_000, 0.6619, **OLD), (43, 44, 45), 325_366, 2.90),
    "512k": (Settings(524_288, 0.669, **OLD), (42, 43, 44, 45), 805_507, 5.36),
    "resident": (Settings(300_000, 0.6981, **OLD), (), 326_310, 2.91),
}
"""Settings, mapped layers, KV tokens and GiB that vLLM 0.32 logged on one H200 (139.8 GiB) on 2026-12-01."""


def on(gib, settings, mapped, sm=12):
    return memory.account(MODEL, Machine(int(gib * GIB), 1 << 40, 2000, 51, sm), settings, mapped)


@pytest.mark.parametrize("name", SERVED)
def test_kv_caches_of_measured_servers_are_predicted(name):
    settings, mapped, tokens, gib = SERVED[name]
    found = on(139.8, settings, mapped, sm=9)
    assert found.kv_tokens == pytest.approx(tokens, rel=0.01)
    assert found.kv_bytes / GIB == pytest.approx(gib, abs=0.02)


def test_the_profiled_step_is_what_vllm_measured():
    # "1.05 GiB for peak activation" in the logs of all three servers.
    assert step_memory.profiled(MODEL, SERVED["300k"][0]) / GIB == pytest.approx(1.05, rel=0.02)


def test_a_server_ran_out_of_memory_where_the_account_says_so():
    # A prompt of 300,000 tokens came to 130,880; one of 32,768 had been answered. 95 GiB were free to the server.
    settings, mapped = replace(SERVED["512k"][0], utilization=0.98446), SERVED["512k"][1]
    spare = {tokens: on(95, replace(settings, context=tokens), mapped, 9).spare for tokens in (32_768, 130_880)}
    assert spare[32_768] > 0 > spare[130_880]


def of_recipe(name):
    loaded = recipe.load(RECIPES / f"{name}.yaml")
    model, settings, mapped = predict.of_recipe(loaded)
    assert model == MODEL
    return loaded.device.vram_gib, settings, mapped


@pytest.mark.parametrize("name", ["pro6000-512k", "pro6000-300k", "h100-128k"])
def test_recipes_leave_room_for_the_longest_prompt_that_they_admit(name):
    gib, settings, mapped = of_recipe(name)
    found = on(gib, settings, mapped, 9 if name.startswith("h100") else 12)
    assert found.safe and found.roomy
    assert sum(found.beyond.values()) + found.share + found.spare == int(gib * GIB)


@pytest.mark.parametrize("change", [{"utilization": 0.98446}, {"logits_bytes": 512 << 20}, {"graphs_counted": False}])
def test_each_setting_of_the_long_profile_is_needed(change):
    gib, settings, mapped = of_recipe("pro6000-512k")
    assert not on(gib, replace(settings, **change), mapped).safe


def test_the_long_profile_as_it_was_runs_out_of_memory():
    gib, settings, mapped = of_recipe("pro6000-512k")
    assert on(gib, replace(settings, utilization=0.98446, **OLD), mapped).spare < 0


def test_the_short_profile_as_it_was_had_room_for_the_prompt_that_it_answered():
    settings, mapped = replace(SERVED["300k"][0], utilization=0.974, context=250_000), SERVED["300k"][1]
    assert on(95, settings, mapped, 9).safe


@given(settings=WISHES)
def test_two_pieces_of_scores_are_alive_at_most(settings):
    pieces = step_memory.prompt(MODEL, settings) - step_memory._live(MODEL, settings)
    row = 4 * (settings.context // 4 + 512)
    assert pieces <= 2 * max(settings.logits_bytes * 1.1, row) + settings.seqs * settings.query * row + 512 * row
    longer = replace(settings, context=2 * settings.context)
    fewer = replace(settings, batched=settings.batched // 2)
    assert step_memory.prompt(MODEL, fewer) <= step_memory.prompt(MODEL, settings)
    assert step_memory.profiled(MODEL, longer) == step_memory.profiled(MODEL, settings)


def test_without_an_indexer_nothing_is_scored():
    plain = replace(MODEL, compress_ratios=(0, 128))
    settings = Settings()
    assert step_memory.prompt(plain, settings) == step_memory.profiled(plain, settings)


def variant(folder, text):
    path = folder / "variant.yaml"
    path.write_text((RECIPES / "pro6000-512k.yaml").read_text().replace("VLLM_NO_USAGE_STATS: 1", text))
    return path


def test_memory_follows_the_variables_of_a_recipe(tmp_path):
    _, settings, _ = of_recipe("pro6000-512k")
    assert settings.graphs_counted and settings.logits_bytes == 128 << 20
    assert not of_recipe("pro6000-300k")[1].graphs_counted
    off = variant(tmp_path, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS: 0")
    assert not predict.of_recipe(recipe.load(off))[1].graphs_counted
    with pytest.raises(RecipeError, match="ESTIMATE_CUDAGRAPHS = 'no' is no whole number"):
        predict.of_recipe(recipe.load(variant(tmp_path, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS: 'no'")))


def test_the_command_fails_for_a_recipe_that_runs_out_of_memory(tmp_path, capsys):
    off = variant(tmp_path, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS: 0")
    assert cli.main(["plan", "--recipe", str(off)]) == 1
    assert "while a prompt of 524,288 tokens runs: 0.03 GiB too little\n" in capsys.readouterr().out
    assert cli.main(["plan", "--recipe", str(RECIPES / "pro6000-512k.yaml")]) == 0
