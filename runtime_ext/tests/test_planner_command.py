"""``moet plan``: what it prints, what it reads, what it refuses."""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from planner_support import RECIPES, ROOT

from moet_w2 import cli, recipe
from moet_w2.errors import MoetError, RecipeError
from moet_w2.planner import cards, commands, costs, measure, memory, predict
from moet_w2.planner.model import FLASH
from moet_w2.planner.options import Number

DEMO = ("--model", str(ROOT / "demo" / "checkpoint"))
PROFILE = ("--recipe", str(RECIPES / "pro6000-512k.yaml"))


@pytest.fixture(autouse=True)
def small_reads(monkeypatch):
    monkeypatch.setattr(measure, "CPU_BYTES", 8 << 20)


def model_of(folder, **changed):
    """A folder with the config.json of DeepSeek-V4-Flash, changed."""
    (folder / "config.json").write_text(json.dumps(FLASH | {"model_type": "deepseek_v4"} | changed))
    return folder


def run(capsys, *options):
    code = cli.main(["plan", *options])
    return code, capsys.readouterr()


def test_the_command_without_options(capsys):
    code, printed = run(capsys)
    assert code == 0
    assert "map 43,44,45\n" in printed.out and "KV cache size 366,247 tokens" in printed.out
    assert "of that a prompt of 300,000 tokens leaves 0.57 GiB free" in printed.out


def test_the_command_as_json(capsys):
    code, printed = run(capsys, "--json", "--context", "524288", "--utilization", "0.98446")
    found = json.loads(printed.out)
    assert found["chosen"] == [42, 43, 44, 45]
    chosen = found["placements"][4]
    assert code == 1 and chosen["spare_bytes"] < 0  # of the original system; ours asks for less of the card
    assert chosen["status"] == "chosen" and chosen["mapped_bytes"] == 7_247_757_312
    assert sum(chosen["device_bytes"].values()) == chosen["share_bytes"]


def test_the_command_takes_every_option(capsys):
    options = "--vram-gib 96 --host-gib 128 --pcie-gbs 51 --hbm-gbs 1790 --context 300000 --seqs 4 --correction-gib 6"
    options += " --utilization 0.974 --batched 2048 --speculative 4 --sm 12 --others 0.45"
    options += " --decode-context 2048"
    code, printed = run(capsys, "--json", *options.split())
    assert code == 0 and json.loads(printed.out) == json.loads(run(capsys, "--json")[1].out)


def test_memory_that_vllm_counts_can_be_given(capsys):
    given = json.loads(run(capsys, "--json", "--runtime-gib", "0.92")[1].out)["placements"][3]
    computed = json.loads(run(capsys, "--json")[1].out)["placements"][3]
    assert given["device_bytes"]["libraries, graphs, step peak"] == int(0.92 * 2**30)
    assert given["kv_tokens"] > computed["kv_tokens"] and given["beyond_bytes"] == computed["beyond_bytes"]


def test_the_command_says_no(capsys):
    code, printed = run(capsys, "--vram-gib", "16")
    assert code == 1 and "nothing fits" in printed.out


def test_the_command_reads_a_recipe(capsys):
    code, printed = run(capsys, "--recipe", str(RECIPES / "pro6000-512k.yaml"))
    assert code == 0 and "mapped: 42,43,44,45" in printed.out
    code, printed = run(capsys, "--recipe", str(RECIPES / "pro6000-512k.yaml"), "--vram-gib", "80")
    assert code == 1 and "does not fit" in printed.out
    code, printed = run(capsys, "--recipe", str(RECIPES / "pro6000-512k.yaml"), "--cuda-gib", "94.2")
    assert code == 0 and "without room for other requests" in printed.out


RATE = re.compile(r"decode, \d|prefill of|tokens/s \(")


@pytest.mark.parametrize(
    ("options", "fault", "remedy"),
    [
        (("--host-gib", "1"), "host memory: 21.75 GiB too little", "22.75 GiB of host memory would do, for 4 mapped"),
        (
            ("--host-gib", "22", "--correction-gib", "0"),
            "host memory: 0.75 GiB too little",
            "map layer 45, 1.69 GiB: one",
        ),
        (("--pcie-gbs", "0"), "no link to read them over", "there is no link, so no layer can be mapped"),
    ],
)
def test_a_recipe_whose_layers_the_host_cannot_hold_does_not_fit(capsys, options, fault, remedy):
    code, printed = run(capsys, *PROFILE, *options)
    assert code == 1 and f"the mapped layers do not fit: {fault}\n" in printed.out and remedy in printed.out
    assert "fits on the card" in printed.out and not RATE.search(printed.out)
    found = json.loads(run(capsys, *PROFILE, *options, "--json")[1].out)
    assert found["host_fault"] == fault and not found["fits"] and found["decode"] == found["prefill_seconds"] == {}
    assert any(remedy in each for each in found["remedies"])


def test_a_recipe_leaves_the_system_what_a_plan_leaves_it(capsys):
    assert run(capsys, *PROFILE, "--host-gib", "22.75")[0] == 0
    assert run(capsys, *PROFILE, "--host-gib", "22.74")[0] == 1


def test_a_recipe_on_a_card_that_is_too_small_has_no_rates_and_no_negative_bytes(capsys):
    code, printed = run(capsys, *PROFILE, "--vram-gib", "48")
    assert code == 1 and not RATE.search(printed.out) and not re.search(r"-\d", printed.out)
    assert re.search(r"missing, before any KV cache +44,932,476,360 +41.85 GiB\n", printed.out)
    assert "no room for a KV cache; a context of 524,288 does not fit: it needs 3.49 GiB" in printed.out
    keys, utilization = re.search(
        r"- map layers (\d+) to 45, .* lower gpu-memory-utilization to (\S+): ", printed.out
    ).groups()
    served = ("--context", "524288", "--vram-gib", "48", "--utilization", utilization, "--json")
    assert json.loads(run(capsys, *served)[1].out)["chosen"][0] == pytest.approx(int(keys), abs=1)


def test_a_recipe_whose_longest_prompt_has_no_room_is_told_the_utilization_that_gives_it(capsys):
    code, printed = run(capsys, *PROFILE, "--utilization", "0.999")
    assert code == 1 and "while a prompt of 524,288 tokens runs: 1.12 GiB too little" in printed.out
    lower = re.search(r"- lower gpu-memory-utilization to (\S+)\n", printed.out)[1]
    code, printed = run(capsys, *PROFILE, "--utilization", lower)
    assert code == 0 and "lower gpu-memory" not in printed.out and "too little" not in printed.out


def test_what_a_recipe_says_of_its_card_counts(capsys):
    recipe_of = ["--json", "--recipe", str(RECIPES / "h200-512k.yaml")]
    machine = json.loads(run(capsys, *recipe_of)[1].out)["machine"]
    assert machine["sm"] == 9 and machine["cuda_bytes"] == int(139.8 * 2**30)
    machine = json.loads(run(capsys, *recipe_of, "--sm", "12", "--cuda-gib", "100")[1].out)["machine"]
    assert machine["sm"] == 12 and machine["cuda_bytes"] == 100 * 2**30


@pytest.mark.parametrize(
    ("name", "options", "rate", "note"),
    [
        ("pro6000-512k", (), 1790, "read rate of device memory: RTX PRO 6000, 96 GB; --hbm-gbs gives another"),
        ("h100-128k", (), 2000, "read rate of device memory: H100 PCIe, 80 GB; --hbm-gbs gives another"),
        *(
            (
                f"h200-{length}",
                (),
                costs.MEASURED_HBM_GBS,
                "read rate of device memory: H200, 141 GB; --hbm-gbs gives another",
            )
            for length in ("128k", "300k", "512k", "resident")
        ),
        (
            "h100-128k",
            ("--cuda-gib=100",),
            1790,
            "assumed, since no known card has 100.00 GiB and a compute capability of 9;",
        ),
        ("h100-128k", ("--sm=12",), 1790, "assumed, since no known card has 79.10 GiB and a compute capability of 12;"),
        ("h100-128k", ("--hbm-gbs=3350",), 3350, None),
    ],
)
def test_a_recipe_is_planned_with_the_read_rate_of_its_card(capsys, name, options, rate, note):
    of = ("--recipe", str(RECIPES / f"{name}.yaml"), *options)
    found = json.loads(run(capsys, *of, "--json")[1].out)
    text = run(capsys, *of)[1].out
    assert found["machine"]["hbm_gbs"] == rate and f" {rate:,.0f} GB/s; link" in text
    if note is None:
        assert found["notes"] == [] and "read rate of" not in text
    else:
        assert note in text and [each for each in found["notes"] if note in each]


def test_a_rate_that_was_measured_is_not_replaced(capsys):
    found = json.loads(run(capsys, *PROFILE, "--measure", "--cuda-gib", "95", "--sm", "12", "--json")[1].out)
    assert found["machine"]["hbm_gbs"] != 1790 and "read rate of" not in " ".join(found["notes"])


def test_cards_of_one_kind_are_told_from_others():
    assert all(cards.known(each.machine) is each for each in cards.KNOWN)
    one = cards.CARDS[0].machine
    assert cards.known(replace(one, cuda_bytes=int(one.cuda_bytes * 0.98))) is None


def test_a_recipe_for_a_cpu_is_refused(capsys):
    code, printed = run(capsys, "--recipe", str(RECIPES / "demo-cpu.yaml"))
    assert code == 2 and "made for a cpu" in printed.err


@pytest.mark.parametrize("option", ["max-num-seqs", "max-num-batched-tokens"])
def test_a_recipe_without_an_option_that_memory_hangs_on_is_refused(option):
    loaded = recipe.load(RECIPES / "pro6000-300k.yaml")
    less = {name: value for name, value in loaded.engine.items() if name != option}
    with pytest.raises(RecipeError, match=option):
        predict.of_recipe(loaded.model_copy(update={"engine": less}))


def test_a_pool_that_a_server_sizes_cannot_be_planned():
    loaded = recipe.load(RECIPES / "pro6000-300k.yaml")
    pool = loaded.w2.model_copy(update={"correction": loaded.w2.correction.model_copy(update={"gb": "auto"})})
    with pytest.raises(RecipeError, match="auto"):
        predict.of_recipe(loaded.model_copy(update={"w2": pool}))


def test_a_plan_leaves_room_for_the_longest_prompt_unless_told_otherwise(capsys):
    small = ("--json", "--vram-gib", "48", "--context", "131072")
    code, printed = run(capsys, *small)
    assert code == 0 and json.loads(printed.out)["placements"][-1]["spare_bytes"] >= memory.LEAST_SPARE
    code, printed = run(capsys, *small, "--utilization", "0.974")
    assert code == 1 and json.loads(printed.out)["placements"][-1]["spare_bytes"] < 0


def test_no_card_of_the_table_runs_out_of_memory(capsys):
    _, printed = run(capsys, "--cards", "--json")
    spare = [row["placement"]["spare_bytes"] for row in json.loads(printed.out) if row["placement"]]
    assert len(spare) > 20 and min(spare) >= memory.LEAST_SPARE


def test_the_table_of_cards(capsys):
    code, printed = run(capsys, "--cards")
    assert code == 0 and "RTX 5090, 32 GB" in printed.out
    rows = json.loads(run(capsys, "--cards", "--json")[1].out)
    assert rows[0]["context"] == 65_536 and rows[0]["placement"]["mapped"] == [43, 44, 45]


def test_the_table_of_cards_takes_a_context_and_a_host(capsys):
    rows = json.loads(run(capsys, "--cards", "--json", "--context", "4096")[1].out)
    assert {row["context"] for row in rows} == {4096} and rows[0]["placement"]["mapped"] == [44, 45]
    whole = json.loads(run(capsys, "--cards", "--json")[1].out)
    rows = json.loads(run(capsys, "--cards", "--json", "--host-gib", "32", "--pcie-gbs", "25")[1].out)
    assert {row["machine"]["host_bytes"] for row in rows} == {32 << 30}
    assert all(row["machine"]["link_gbs"] == 25 for row in rows)
    assert [row["machine"]["hbm_gbs"] for row in rows] == [row["machine"]["hbm_gbs"] for row in whole]
    assert sum(row["placement"] is None for row in rows) > sum(row["placement"] is None for row in whole)


@pytest.mark.parametrize("drafts", ["0", "1", "4"])
def test_the_table_of_cards_and_a_plan_agree(capsys, drafts):
    options = ("--speculative", drafts, "--json")
    rows = json.loads(run(capsys, "--cards", *options)[1].out)
    row = next(row for row in rows if row["context"] == 300_000 and row["correction_bytes"])
    plan = json.loads(run(capsys, *options)[1].out)
    assert row["machine"] == plan["machine"] and row["placement"]["mapped"] == plan["chosen"]
    assert row["placement"]["decode"] == plan["placements"][len(plan["chosen"])]["decode"]


def test_no_routing_of_the_table_finds_fp4_where_there_is_no_pool(capsys):
    rows = json.loads(run(capsys, "--cards", "--json", "--correction-hits", "0.5")[1].out)
    plain = json.loads(run(capsys, "--cards", "--json")[1].out)
    changed = [row["correction_bytes"] for row, other in zip(rows, plain, strict=True) if row != other]
    assert changed and all(changed)


def test_the_command_reads_a_checkpoint(capsys):
    code, printed = run(capsys, "--model", str(ROOT / "demo" / "checkpoint"), "--context", "4096", "--json")
    found = json.loads(printed.out)
    assert code == 0 and found["chosen"] == [] and len(found["placements"]) == 5


def test_without_a_mapped_layer_the_pool_costs_none(capsys):
    printed = run(capsys, *DEMO)[1].out
    assert "- the correction pool takes 0.01 GiB, as much as 7.1 layers\n" in printed and "without it" not in printed
    assert "as much as 3.6 layers; without it none would need to be mapped" in run(capsys)[1].out


@pytest.mark.parametrize("option", ["--cards", "--compare", "--json", "--seqs=4"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line(option):
    command = [sys.executable, "-m", "moet_w2.cli", "plan", option]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "moet: error: the plan cannot be written: No space left on device; write it to another place\n"
    assert done.returncode == 2 and done.stderr == said


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


NUMBERS = {
    "vram-gib": ("-5", "0", "1e-9", "1e30"),
    "cuda-gib": ("-5", "0", "1e30"),
    "host-gib": ("-1", "0", "1e30"),
    "hbm-gbs": ("-1", "0", "1e-320", "1e30"),
    "pcie-gbs": ("-1", "1e-320", "1e30"),
    "sm": ("0", "-1", "90", "120", "12.0"),
    "context": ("0", "-1", "1e5", "99999999999"),
    "utilization": ("0", "-1", "1e-300", "1.01"),
    "seqs": ("0", "-1", "1.5", "99999999999"),
    "batched": ("0", "-1", "99999999999"),
    "speculative": ("-1", "99999999999"),
    "correction-gib": ("-1", "1e30"),
    "tokens-per-step": ("0.9", "-1", "1e12"),
    "correction-hits": ("-0.1", "1.1"),
    "decode-context": ("-1", "99999999999"),
    "others": ("-0.1", "1.1"),
    "runtime-gib": ("-1", "1e30"),
}
"""Options that take a number, each with numbers that it does not take."""


@pytest.mark.parametrize(
    ("option", "typed"),
    [(option, typed) for option, some in NUMBERS.items() for typed in (*some, "nan", "inf", "-inf", "", "x\ny")],
)
def test_a_number_that_makes_no_plan_is_one_line(capsys, option, typed):
    code, printed = run(capsys, f"--{option}={typed}")
    said = rf"moet: error: --{option} is {re.escape(repr(typed))}; give a (whole )?number from \S+ to \d+(, or 0)?\n"
    assert code == 2 and not printed.out and re.fullmatch(said, printed.err)


@pytest.mark.parametrize("mode", ["--json", "--cards", "--compare", "--measure", "--recipe=/nowhere.yaml"])
def test_numbers_are_looked_at_first(capsys, mode):
    code, printed = run(capsys, mode, "--vram-gib", "48", "--hbm-gbs", "inf")
    assert code == 2 and not printed.out and "--hbm-gbs is 'inf'; give a number from 0.1 to 100000\n" in printed.err


def plan_actions():
    """The options of ``moet plan`` that have a type."""
    found = argparse.ArgumentParser().add_subparsers()
    commands.add_parser(found)
    return [action for action in found.choices["plan"]._actions if action.type not in (None, Path)]


def test_every_number_has_a_range():
    assert {action.option_strings[0] for action in plan_actions()} == {f"--{option}" for option in NUMBERS}
    assert all(isinstance(action.type, Number) for action in plan_actions())


BESIDE = {
    "context": ("--model",),
    "decode-context": ("--model", "--context=16777216"),
    "tokens-per-step": ("--speculative=64",),
}
"""What else the highest value of an option needs; a model, where that of all models is too short."""


@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.parametrize("option", NUMBERS)
def test_both_ends_of_a_range_make_a_plan(capsys, tmp_path, option, end):
    long = model_of(tmp_path, max_position_embeddings=1 << 24)
    action = next(each for each in plan_actions() if f"--{option}" in each.option_strings)
    beside = [f"--model={long}" if each == "--model" else each for each in BESIDE.get(option, ())]
    card = "--sm=9" if option == "cuda-gib" else "--vram-gib=48"
    for others in ((), (card, "--hbm-gbs", "100000")):
        code, printed = run(capsys, *others, *beside, f"--{option}={getattr(action.type, end)}")
        assert code in (0, 1) and not printed.err and not re.search(r"\b(nan|inf)\b", printed.out)


CARDS_HAVE = "has no part in --cards, whose cards are given; leave one out"
ONLY_JSON = "has no part in --compare, which takes only --json; leave one out"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *((("--cards", f"--{option}=9"), f"--{option} {CARDS_HAVE}") for option in ("vram-gib", "cuda-gib", "hbm-gbs")),
        (("--cards", "--sm=9"), f"--sm {CARDS_HAVE}"),
        (("--cards", "--measure"), f"--measure {CARDS_HAVE}"),
        (("--cards", *PROFILE), f"--recipe {CARDS_HAVE}"),
        (("--compare", "--cards"), f"--cards {ONLY_JSON}"),
        (("--compare", "--measure"), f"--measure {ONLY_JSON}"),
        (("--compare", *DEMO), f"--model {ONLY_JSON}"),
        *((("--compare", f"--{option}=1"), f"--{option} {ONLY_JSON}") for option in NUMBERS),
        (("--compare", "--speculative=0"), f"--speculative {ONLY_JSON}"),
        (("--vram-gib=48", "--cuda-gib=90"), "--vram-gib and --cuda-gib both give the card's memory; leave one out"),
        (("--seqs=1", "--others=0.3"), "--others is 0.3, but with one request there are none; give 0, or more --seqs"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(capsys, options, said):
    code, printed = run(capsys, *options)
    assert code == 2 and not printed.out and printed.err == f"moet: error: {said}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tokens-per-step=5.5",), "--tokens-per-step is 5.5, .* at most 4 drafts; give at most 5, or more drafts"),
        (("--tokens-per-step=1.5", "--speculative=0"), "--tokens-per-step is 1.5, .* at most 0 drafts; give at most 1"),
        (("--tokens-per-step=6", *PROFILE), "--tokens-per-step is 6, .* give at most 5"),
        (("--tokens-per-step=2", *DEMO), "--tokens-per-step is 2, .* at most 0 drafts; give at most 1"),
        (("--speculative=2", *DEMO), "--speculative is 2, but the model has no draft layers; give 0"),
        (
            ("--correction-hits=0.1", "--correction-gib=0"),
            "--correction-hits is 0.1, .* pool of 0 bytes .*--correction-gib",
        ),
        (("--correction-hits=0.1", "--correction-gib=0.01", *PROFILE), "--correction-hits is 0.1, .* has no slot"),
        (("--decode-context=300001",), "--decode-context is 300001, .* give at most 300000, .* --context"),
        (("--decode-context=65537", "--cards"), "--decode-context is 65537, .* give at most 65536"),
        (("--decode-context=524289", *PROFILE), "--decode-context is 524289, .* give at most 524288"),
        (("--context=1048577",), "--context is 1048577, .* max_position_embeddings; give at most 1048576"),
        (("--context=1048577", "--cards"), "--context is 1048577, .* give at most 1048576"),
        (("--context=1048577", *PROFILE), "--context is 1048577, .* give at most 1048576"),
        (("--context=16385", *DEMO), "--context is 16385, .* give at most 16384"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(capsys, options, said):
    code, printed = run(capsys, *options)
    assert code == 2 and not printed.out and re.fullmatch(f"moet: error: {said}.*\n", printed.err)


def test_bounds_themselves_make_a_plan(capsys):
    for options in (
        ("--tokens-per-step=5", "--decode-context=300000"),
        ("--tokens-per-step=1", "--speculative=0", "--correction-gib=0", "--correction-hits=0"),
        ("--context=1048576", *PROFILE),
        ("--context=16384", *DEMO),
        ("--seqs=1", "--others=0"),
    ):
        code, printed = run(capsys, *options)
        assert code in (0, 1) and not printed.err


def test_a_recipe_beyond_what_its_model_takes_is_refused(capsys, tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text((RECIPES / "pro6000-512k.yaml").read_text().replace("524288", "2097152"))
    code, printed = run(capsys, "--recipe", str(path))
    assert code == 2 and f"{path}: engine.max-model-len is 2097152, " in printed.err and "1048576" in printed.err


def test_what_is_not_given_is_what_can_be(capsys):
    found = json.loads(run(capsys, *DEMO, "--json")[1].out)
    assert found["placements"][0]["prefill_seconds"] > 0 and found["assumptions"]["decode_context"] == 2048
    assert found == json.loads(run(capsys, *DEMO, "--json", "--context=16384", "--speculative=0")[1].out)
    assert {row["context"] for row in json.loads(run(capsys, *DEMO, "--cards", "--json")[1].out)} == {16384}
    found = json.loads(run(capsys, "--json", "--context=1024", "--speculative=1")[1].out)
    assert found["assumptions"]["decode_context"] == 1024
    assert found["placements"][0]["decode"]["1"]["tokens_per_step"] == 2


def test_a_recipe_without_speculation_loads_no_draft_layer(capsys):
    found = json.loads(run(capsys, *PROFILE, "--speculative=0", "--json")[1].out)
    assert found["mapped"] == [42] and "DSpark but its routed experts" not in found["device_bytes"]
    assert found["device_bytes"]["W2 planes, draft"] == 0 and found["decode"]["1"]["tokens_per_step"] == 1


def test_no_link_is_zero(capsys):
    assert json.loads(run(capsys, "--json", "--pcie-gbs", "0")[1].out)["machine"]["link_gbs"] is None


def test_a_folder_with_another_model_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "deepseek_v4" in run(capsys, "--model", str(tmp_path))[1].err
    (tmp_path / "config.json").write_text("{")
    assert "cannot be read as JSON" in run(capsys, "--model", str(tmp_path))[1].err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", None),
        ("hidden_size", 100),
        ("compress_ratios", [[0]] * 43),
        ("compress_ratios", "0" * 43),
        ("num_experts_per_tok", 257),
        ("n_shared_experts", "1"),
        ("num_hash_layers", -1),
        ("n_mtp_layers", "3"),
        ("dspark_markov_rank", 2.5),
        ("dspark_target_layer_ids", 40),
    ],
)
@pytest.mark.parametrize("options", [(), PROFILE])
def test_a_broken_config_is_named_with_its_folder(tmp_path, capsys, name, value, options):
    code, printed = run(capsys, "--model", str(model_of(tmp_path, **{name: value})), *options)
    assert code == 2 and not printed.out and printed.err.count("\n") == 1
    assert printed.err.startswith(f"moet: error: {tmp_path}/config.json: ")
    assert name in printed.err or "hidden size" in printed.err


def test_a_recipe_of_another_model_is_refused():
    loaded = recipe.load(RECIPES / "demo-cpu.yaml")
    with pytest.raises(RecipeError, match="target layers"):
        predict.of_recipe(loaded)
    demo = json.loads((ROOT / "demo" / "checkpoint" / "config.json").read_text())
    assert predict.of_recipe(loaded, demo)[2] == (2, 3)
    with pytest.raises(MoetError, match="geometry"):
        predict.of_recipe(loaded, demo | {"hidden_size": 512})


def test_the_document_names_every_option(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    named = set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs" / "planner.md").read_text()))
    assert options == named - {"--out"}


def test_the_machine_at_hand_can_be_planned_for(capsys):
    code, printed = run(capsys, "--measure", "--json")
    found = json.loads(printed.out)
    assert code in (0, 1) and found["measured"] and found["machine"]["hbm_gbs"] > 0


def test_planning_needs_no_torch():
    code = "import sys, moet_w2.planner.commands; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_this_machine_is_measured():
    found = measure.measure()
    assert found.machine.hbm_gbs > 0.1 and found.machine.cuda_bytes > 0 and found.notes
    if found.machine.sm == 0:
        assert found.machine.link_gbs is None and "there is no link" in found.notes[0]


def test_a_gpu_is_measured(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4096, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(measure, "_device_gbs", lambda nbytes, device: 4000.0 + nbytes)
    monkeypatch.setattr(measure, "_mapped_gbs", lambda device: 50.0)
    found = measure.measure()
    assert found.machine.cuda_bytes == 8 << 30 and found.machine.sm == 9
    assert found.machine.hbm_gbs == 4000 + 2048 and found.machine.link_gbs == 50
    assert "a card" in found.notes[0]


def test_a_limit_below_the_machines_memory_is_what_counts(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("CapEff:\tffffffffffffffff\n")
    (tmp_path / "proc/meminfo").write_text("MemAvailable:  1024 kB\n")
    found = measure.measure(tmp_path)
    assert found.machine.host_bytes == 1 << 20 and "MemAvailable" in found.notes[0]
