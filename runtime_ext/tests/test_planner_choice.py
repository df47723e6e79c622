"""What the planner chooses and why: the two profiles, other cards, and what it says where nothing fits."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from planner_support import MODEL, RECIPES, WISHES

from moet_w2 import recipe
from moet_w2.errors import ConfigError
from moet_w2.planner import cards, choose, memory, predict, prefill, reported, speed
from moet_w2.planner.machine import GIB, HOST_RESERVE, card
from moet_w2.planner.placements import Assumptions
from moet_w2.planner.settings import Settings

ORIGINAL = Assumptions(runtime_bytes=reported.RUNTIME_BYTES)


@pytest.mark.parametrize("profile", reported.PROFILES, ids=lambda profile: profile.name)
def test_the_profiles_of_the_96_gb_card_are_the_plans(profile):
    assert choose.plan(MODEL, card(), profile.settings, ORIGINAL).chosen.mapped == profile.mapped


@pytest.mark.parametrize("others", [0.36, 0.5, 0.55])
def test_the_profiles_do_not_hang_on_the_share_of_other_requests(others):
    for profile in reported.PROFILES:
        plan = choose.plan(MODEL, card(), profile.settings, replace(ORIGINAL, others=others))
        assert plan.chosen.mapped == profile.mapped


@pytest.mark.parametrize("others", [0.34, 0.57])
def test_beyond_that_share_another_placement_is_chosen(others):
    given = replace(ORIGINAL, others=others)
    plans = [choose.plan(MODEL, card(), profile.settings, given) for profile in reported.PROFILES]
    assert [plan.chosen.mapped for plan in plans] != [profile.mapped for profile in reported.PROFILES]


def test_the_recipes_of_the_profiles_fit_as_they_are():
    for name in ("pro6000-300k", "pro6000-512k"):
        loaded = recipe.load(RECIPES / f"{name}.yaml")
        model, settings, mapped = predict.of_recipe(loaded)
        assert model == MODEL
        machine = replace(card(), cuda_bytes=int(loaded.device.vram_gib * GIB))
        assert choose.plan(model, machine, settings).chosen.mapped == mapped


def test_how_far_the_model_is_off_what_was_reported():
    rows = {(row["profile"], row["what"]): row for row in reported.compare()}
    assert abs(rows["300k", "KV tokens"]["off_by"]) < 0.003  # fitted
    assert abs(rows["512k", "KV tokens"]["off_by"]) < 0.015  # not fitted
    implied = [row["implied_tokens_per_step"] for row in rows.values() if "implied_tokens_per_step" in row]
    assert len(implied) == 4 and 2.35 <= min(implied) and max(implied) <= 3.0
    assert all(abs(row["off_by"]) < 0.15 for row in rows.values())


def test_the_constant_that_was_fitted_is_what_the_300k_profile_leaves():
    profile = reported.PROFILES[0]
    found = memory.account(MODEL, card(), profile.settings, profile.mapped, runtime_bytes=0)
    layout = memory.kv_cache.layout(MODEL)
    blocks = profile.kv_tokens / profile.settings.context * layout.blocks(profile.settings.context, 4096)
    left = found.kv_bytes - blocks * layout.block_bytes
    assert round(left / GIB, 2) == round(reported.RUNTIME_BYTES / GIB, 2)


@examples(max_examples=8, deadline=None)
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


def test_a_table_of_cards_has_the_profiles_and_smaller_cards():
    found = {
        (each.card.name, each.settings.context, bool(each.settings.correction_bytes)): each.placement
        for each in cards.propose(MODEL, Settings())
    }
    assert found["RTX PRO 6000, 96 GB", 300_000, True].mapped == (43, 44, 45)
    assert found["RTX PRO 6000, 96 GB", 300_000, False].mapped == ()
    # One more than at 0.974, which leaves a prompt of that length too little.
    assert len(found["RTX 5090, 32 GB", 300_000, True].mapped) == 41
    rates = [found[each.name, 300_000, True].decode[1].tokens_per_s for each in cards.CARDS]
    assert rates == sorted(rates, reverse=True)


def test_a_card_in_the_table_may_fit_nothing():
    small = cards.Card("a small one", card(8))
    assert all(each.placement is None for each in cards.propose(MODEL, Settings(), [small]))


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


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"others": 1.5}, "0 to 1"),
        ({"tokens_per_step": 0.5}, "at least 1"),
        ({"correction_hits": -0.1}, "0 to 1"),
        ({"runtime_bytes": -1}, "runtime_bytes"),
        ({"decode_context": -1}, "decode_context"),
        *(({name: float("nan")}, name) for name in ("others", "tokens_per_step", "correction_hits", "runtime_bytes")),
    ],
)
def test_assumptions_that_cannot_be(change, named):
    with pytest.raises(ConfigError, match=named):
        Assumptions(**change)


def test_reasons_name_layers_and_figures():
    text = "\n".join(choose.plan(MODEL, card(), Settings(524_288, 0.98446)).reasons)
    assert "4 layers are mapped, as few as will do; with 3: no room for other requests" in text
    assert "layers 43 to 45 first" in text and "layer 42 as well" in text and "take no correction slot" in text
    assert "a utilization of 0.98446 leaves 1.48 GiB of the card alone" in text
    assert "of that a prompt of 524,288 tokens takes 0.46 GiB more than there is: a utilization of 0.974 leaves" in text


def test_mapping_a_draft_layer_costs_less_than_a_target_layer():
    def step(mapped):
        return speed.decode(MODEL, card(), Settings(), mapped).step_seconds

    def prompt(mapped):
        return prefill.seconds(MODEL, card(), Settings(), mapped, 100_000)

    assert step(()) < step((45,)) < step((42,))
    assert prompt((45,)) - prompt(()) < 0.01 * prompt(())
    assert prompt((42,)) - prompt(()) > 5 * (prompt((45,)) - prompt(()))
