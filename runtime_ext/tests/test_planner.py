"""The planner: bytes against the demo checkpoint, the two profiles, every gate, and what must hold for any wish."""

import json
import re
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from moet_w2 import cli
from moet_w2.errors import CheckpointError, ConfigError, MoetError, RecipeError
from moet_w2.planner import choose, costs, memory, predict, reported, speed, weights
from moet_w2.planner.machine import GIB, HOST_RESERVE, Machine, card
from moet_w2.planner.model import FLASH, from_config
from moet_w2.planner.placements import Assumptions, last
from moet_w2.planner.settings import Settings
from moet_w2.planner.speed import Load

ROOT = Path(__file__).resolve().parents[2]
MODEL = from_config(FLASH)
WISHES = st.builds(
    Settings,
    context=st.integers(1024, 1 << 20),
    utilization=st.floats(0.5, 1.0),
    seqs=st.integers(1, 16),
    batched=st.sampled_from([512, 2048, 8192]),
    speculative=st.integers(0, 7),
    correction_bytes=st.sampled_from([0, 1 << 30, 6 << 30]),
)
COUNTS = st.integers(0, MODEL.layers)


# Bytes.


def test_dense_bytes_are_those_of_the_demo_checkpoint():
    folder = ROOT / "demo" / "checkpoint"
    model = from_config(json.loads((folder / "config.json").read_text()))
    found: Counter[str] = Counter()
    for shard in folder.glob("*.safetensors"):
        with shard.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        for name, entry in header.items():
            if name != "__metadata__" and ".experts." not in name:
                first, last = entry["data_offsets"]
                found[purpose(name)] += last - first
    assert found == {name: nbytes for name, nbytes in weights.dense(model).items() if nbytes}


def purpose(name):
    if ".shared_experts." in name:
        return weights.SHARED
    if ".gate." in name:
        return weights.GATES
    if ".compressor." in name or ".indexer." in name:
        return weights.INDEXER
    if ".attn." in name:
        return weights.ATTENTION
    return {"embed.weight": weights.EMBEDDING, "head.weight": weights.HEAD}.get(name, weights.STREAMS)


def test_dense_bytes_of_flash_are_those_of_vllms_modules():
    # Sums over named_parameters() of DeepseekV4Model and DSparkDeepseekV4Model of vLLM's nvidia package, built on the
    # meta device from this geometry; embedding and head of the draft are the target's, routed experts not counted.
    dense = weights.dense(MODEL)
    assert sum(dense.values()) - dense[weights.DRAFT] - dense[weights.HEAD] == 7_777_589_468
    assert dense[weights.DRAFT] == 601_482_652


def test_flash_is_what_the_benchmarks_serve():
    config = json.loads((ROOT / "bench" / "models" / "deepseek-v4-flash" / "config.json").read_text())
    assert from_config(config) == MODEL


@given(settings=WISHES, count=st.integers(0, MODEL.layers - 1))
def test_one_more_mapped_layer_frees_exactly_its_bytes(settings, count):
    before, after = (memory.account(MODEL, card(), settings, last(MODEL, n)) for n in (count, count + 1))
    assert after.kv_bytes - before.kv_bytes == MODEL.geometry.nbytes == 1_811_939_328
    assert after.mapped_bytes - before.mapped_bytes == MODEL.geometry.nbytes


@given(settings=WISHES, count=COUNTS)
def test_every_byte_of_the_share_has_a_purpose(settings, count):
    found = memory.account(MODEL, card(), settings, last(MODEL, count))
    assert sum(found.device.values()) + found.kv_bytes == found.share
    assert all(nbytes >= 0 for nbytes in found.device.values())


@given(settings=WISHES, count=COUNTS, vram=st.floats(8, 192), more=st.floats(0, 96))
def test_more_memory_never_gives_fewer_tokens(settings, count, vram, more):
    mapped = last(MODEL, count)
    less, much = (memory.account(MODEL, card(gib), settings, mapped).kv_tokens for gib in (vram, vram + more))
    assert less <= much


# The two profiles.


@pytest.mark.parametrize("profile", reported.PROFILES, ids=lambda profile: profile.name)
def test_the_profiles_of_the_96_gb_card_are_the_plans(profile):
    assert choose.plan(MODEL, card(), profile.settings).chosen.mapped == profile.mapped


@pytest.mark.parametrize("others", [0.36, 0.5, 0.55])
def test_the_profiles_do_not_hang_on_the_share_of_other_requests(others):
    for profile in reported.PROFILES:
        plan = choose.plan(MODEL, card(), profile.settings, Assumptions(others=others))
        assert plan.chosen.mapped == profile.mapped


@pytest.mark.parametrize("others", [0.34, 0.57])
def test_beyond_that_share_another_placement_is_chosen(others):
    plans = [choose.plan(MODEL, card(), profile.settings, Assumptions(others=others)) for profile in reported.PROFILES]
    assert [plan.chosen.mapped for plan in plans] != [profile.mapped for profile in reported.PROFILES]


def test_the_recipes_of_the_profiles_fit_as_they_are():
    for name in ("pro6000-300k", "pro6000-512k"):
        from moet_w2 import recipe

        loaded = recipe.load(ROOT / "bench" / "recipes" / f"{name}.yaml")
        model, settings, mapped = predict.of_recipe(loaded)
        assert model == MODEL
        machine = replace(card(), cuda_bytes=int(loaded.device.vram_gib * GIB))
        assert choose.plan(model, machine, settings).chosen.mapped == mapped


def test_how_far_the_model_is_off_what_was_reported():
    rows = {(row["profile"], row["what"]): row for row in reported.compare()}
    assert abs(rows["300k", "KV tokens"]["off_by"]) < 0.003  # fitted
    assert abs(rows["512k", "KV tokens"]["off_by"]) < 0.015  # not fitted
    implied = [row["implied_tokens_per_step"] for row in rows.values() if "implied_tokens_per_step" in row]
    assert len(implied) == 4 and 2.6 <= min(implied) and max(implied) <= 3.2
    assert all(abs(row["off_by"]) < 0.15 for row in rows.values())


def test_the_constant_that_was_fitted_is_what_the_300k_profile_leaves():
    profile = reported.PROFILES[0]
    found = memory.account(MODEL, card(), profile.settings, profile.mapped, runtime_bytes=0)
    layout = memory.kv_cache.layout(MODEL)
    blocks = profile.kv_tokens / profile.settings.context * layout.blocks(profile.settings.context, 4096)
    left = found.kv_bytes - blocks * layout.block_bytes
    assert round(left / GIB, 2) == round(memory.RUNTIME_BYTES / GIB, 2)


# Choosing.


@examples(max_examples=30, deadline=None)
@given(settings=WISHES, vram=st.floats(16, 192), host=st.floats(16, 256))
def test_the_plan_is_the_first_placement_without_a_fault(settings, vram, host):
    machine = card(vram, host)
    plan = choose.plan(MODEL, machine, settings)
    good = [place for place in plan.placements if place.status in ("fits", "chosen")]
    assert plan.chosen is (good[0] if good else None)
    for place in good:
        found = place.memory
        assert found.kv_bytes >= found.kv_needed + found.kv_reserve
        assert not place.mapped or found.mapped_bytes + HOST_RESERVE <= machine.host_bytes
    assert plan.reasons


@pytest.mark.parametrize(("vram", "mapped"), [(141, 0), (96, 3), (80, 13), (48, 31), (32, 40)])
def test_other_cards(vram, mapped):
    plan = choose.plan(MODEL, card(vram), Settings())
    assert len(plan.chosen.mapped) == mapped


def test_a_card_that_nothing_fits_is_told_what_would():
    plan = choose.plan(MODEL, card(20), Settings(context=1 << 20))
    assert plan.chosen is None
    text = "\n".join(plan.reasons)
    assert "nothing fits; with 46 of 46 layers mapped: context does not fit" in text
    assert "without it 46 mapped layers would do" in text
    context = int(re.search(r"a context of ([\d,]+) tokens would fit, with 46 mapped layers", text)[1].replace(",", ""))
    assert choose.plan(MODEL, card(20), Settings(context=context)).chosen
    assert not choose.plan(MODEL, card(20), Settings(context=context + 1024)).chosen


def test_a_host_that_is_too_small_is_told_how_much_would_do():
    plan = choose.plan(MODEL, card(48, host_gib=64), Settings())
    assert plan.chosen is None
    assert "host memory: 4.31 GiB too little" in plan.placements[31].status
    assert any("68.31 GiB of host memory would do, for 31 mapped layers" in reason for reason in plan.reasons)


def test_without_a_link_no_layer_is_mapped():
    plan = choose.plan(MODEL, replace(card(), link_gbs=None), Settings())
    assert plan.chosen is None and len(plan.placements) == 1
    assert any("there is no link" in reason for reason in plan.reasons)


def test_reasons_name_layers_and_figures():
    text = "\n".join(choose.plan(MODEL, card(), Settings(524_288, 0.98446)).reasons)
    assert "4 layers are mapped, as few as will do; with 3: no room for other requests" in text
    assert "layers 43 to 45 first" in text and "layer 42 as well" in text and "take no correction slot" in text


def test_mapping_a_draft_layer_costs_less_than_a_target_layer():
    def step(mapped):
        return speed.decode(MODEL, card(), Settings(), mapped).step_seconds

    def prefill(mapped):
        return speed.prefill(MODEL, card(), Settings(), mapped, 100_000)

    assert step(()) < step((45,)) < step((42,))
    assert prefill(()) == prefill((45,)) < prefill((42,))


# Speed.


@given(
    settings=WISHES,
    requests=st.integers(1, 16),
    link=st.floats(5, 100),
    hits=st.floats(0, 1),
)
def test_the_rate_falls_with_every_mapped_layer(settings, requests, link, hits):
    machine = card(link_gbs=link)
    model = MODEL if settings.speculative else replace(MODEL, draft_layers=0)
    load = Load(requests, correction_hits=hits)
    rates = [
        speed.decode(model, machine, settings, last(model, count), load).tokens_per_s
        for count in range(0, model.layers + 1, 5)
    ]
    assert rates == sorted(rates, reverse=True)


@given(tokens=st.integers(1, 4096))
def test_distinct_experts_are_at_most_all(tokens):
    found = speed.distinct(256, 6, tokens)
    assert min(256, 6) * (tokens > 0) <= found + 1e-9 and found <= min(256, 6 * tokens) + 1e-9


def test_distinct_experts_are_those_that_the_benchmark_drew():
    kernels = json.loads((ROOT / "bench" / "results" / "kernels_h200.json").read_text())
    for point in kernels["tokens"]:
        if point["tier"] == "base":
            assert speed.distinct(256, 6, point["tokens"]) == pytest.approx(point["experts"], rel=0.03)


def test_the_cost_table_is_the_committed_result():
    kernels = json.loads((ROOT / "bench" / "results" / "kernels_h200.json").read_text())
    found = costs.from_result(kernels)
    assert [tokens for tokens, _ in found.chain_us] == [tokens for tokens, _ in costs.CHAIN_US]
    for (_, measured), (_, written) in zip(found.chain_us, costs.CHAIN_US, strict=True):
        assert written == pytest.approx(measured, rel=0.1)
    assert costs.MEASURED_HBM_GBS == pytest.approx(found.hbm_gbs, rel=0.05)
    assert costs.FP4_OVER_BASE == pytest.approx(found.fp4_over_base, rel=0.1)


def test_the_link_share_is_the_committed_result():
    mapped = json.loads((ROOT / "bench" / "results" / "kernels_mapped_h200.json").read_text())
    shares = [point["share_of_ceiling"]["chain"] for point in mapped["tokens"]]
    assert min(shares) - 0.01 <= costs.LINK_SHARE <= max(shares)


def test_a_measured_point_is_given_back_on_the_card_it_is_from():
    for tokens, microseconds in costs.CHAIN_US:
        found = costs.Costs()
        assert found.fixed() + found.reads(tokens, costs.MEASURED_HBM_GBS) == pytest.approx(microseconds * 1e-6)


def test_more_accepted_tokens_are_more_tokens_a_second():
    slow, fast = (speed.decode(MODEL, card(), Settings(), (), Load(tokens_per_step=n)) for n in (1.0, 3.0))
    assert fast.tokens_per_s == pytest.approx(3 * slow.tokens_per_s)


# Refusals.


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"utilization": 0}, "utilization"),
        ({"utilization": 1.1}, "utilization"),
        ({"context": 0}, "context"),
        ({"seqs": 0}, "seqs"),
        ({"batched": 0}, "batched"),
        ({"speculative": -1}, "speculative"),
        ({"correction_bytes": -1}, "correction_bytes"),
        ({"block": 100}, "block"),
    ],
)
def test_settings_that_no_server_takes(change, named):
    with pytest.raises(ConfigError, match=named):
        Settings(**change)


@pytest.mark.parametrize("change", [{"cuda_bytes": 0}, {"host_bytes": -1}, {"hbm_gbs": 0}, {"link_gbs": -5}])
def test_machines_that_are_none(change):
    with pytest.raises(ConfigError, match="must be greater than 0"):
        Machine(**({"cuda_bytes": GIB, "host_bytes": GIB, "hbm_gbs": 1, "link_gbs": 1} | change))


@pytest.mark.parametrize(
    ("change", "named"),
    [({"hidden_size": None}, "hidden_size"), ({"vocab_size": True}, "vocab"), ({"compress_ratios": [4]}, "ratios")],
)
def test_configurations_that_are_no_model(change, named):
    with pytest.raises(CheckpointError, match=named):
        from_config(FLASH | change)


# The command.


def run(capsys, *options):
    code = cli.main(["plan", *options])
    return code, capsys.readouterr()


def test_the_command_without_options(capsys):
    code, printed = run(capsys)
    assert code == 0
    assert "map 43,44,45\n" in printed.out and "KV cache size 378,406 tokens" in printed.out


def test_the_command_as_json(capsys):
    code, printed = run(capsys, "--json", "--context", "524288", "--utilization", "0.98446")
    found = json.loads(printed.out)
    assert code == 0 and found["chosen"] == [42, 43, 44, 45]
    chosen = found["placements"][4]
    assert chosen["status"] == "chosen" and chosen["mapped_bytes"] == 7_247_757_312
    assert sum(chosen["device_bytes"].values()) == chosen["share_bytes"]


def test_the_command_takes_every_option(capsys):
    options = "--vram-gib 96 --host-gib 128 --pcie-gbs 51 --hbm-gbs 1790 --context 300000 --seqs 4 --correction-gib 6"
    options += " --utilization 0.974 --batched 2048 --speculative 4 --sm 12 --tokens-per-step 3 --runtime-gib 0.92"
    code, printed = run(capsys, "--json", *options.split())
    assert code == 0 and json.loads(printed.out) == json.loads(run(capsys, "--json")[1].out)


def test_the_command_says_no(capsys):
    code, printed = run(capsys, "--vram-gib", "16")
    assert code == 1 and "nothing fits" in printed.out


def test_the_command_reads_a_recipe(capsys):
    code, printed = run(capsys, "--recipe", str(ROOT / "bench" / "recipes" / "pro6000-512k.yaml"))
    assert code == 0 and "mapped: 42,43,44,45" in printed.out
    code, printed = run(capsys, "--recipe", str(ROOT / "bench" / "recipes" / "pro6000-512k.yaml"), "--vram-gib", "80")
    assert code == 1 and "does not fit" in printed.out


def test_the_command_reads_a_checkpoint(capsys):
    code, printed = run(capsys, "--model", str(ROOT / "demo" / "checkpoint"), "--context", "4096", "--json")
    found = json.loads(printed.out)
    assert code == 0 and found["chosen"] == [] and len(found["placements"]) == 5


def test_the_comparison(capsys):
    code, printed = run(capsys, "--compare")
    assert code == 0 and "378,490" in printed.out and "901,924" in printed.out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--context", "0"], "context"),
        (["--utilization", "2"], "utilization"),
        (["--hbm-gbs", "0"], "--hbm-gbs"),
        (["--model", "/nowhere"], "config.json"),
        (["--recipe", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_bad_options_are_one_line(capsys, options, named):
    code, printed = run(capsys, *options)
    assert code == 2 and named in printed.err and printed.err.count("\n") == 1


def test_a_folder_with_another_model_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "deepseek_v4" in run(capsys, "--model", str(tmp_path))[1].err
    (tmp_path / "config.json").write_text("{")
    assert "cannot be read as JSON" in run(capsys, "--model", str(tmp_path))[1].err


def test_a_recipe_of_another_model_is_refused():
    from moet_w2 import recipe

    loaded = recipe.load(ROOT / "bench" / "recipes" / "demo-cpu.yaml")
    with pytest.raises(RecipeError, match="target layers"):
        predict.of_recipe(loaded)
    demo = json.loads((ROOT / "demo" / "checkpoint" / "config.json").read_text())
    assert predict.of_recipe(loaded, demo)[2] == (2, 3)
    with pytest.raises(MoetError, match="geometry"):
        predict.of_recipe(loaded, demo | {"hidden_size": 512})


def test_planning_needs_no_torch():
    code = "import sys, moet_w2.planner.commands; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_this_machine_is_measured():
    from moet_w2.planner import measure

    found = measure.measure()
    assert found.machine.hbm_gbs > 0.1 and found.machine.cuda_bytes > 0 and found.notes
    if found.machine.sm == 0:
        assert found.machine.link_gbs is None and "there is no link" in found.notes[0]
