"""The recipes for other cards are what the planner proposes for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moet_w2 import recipe
from moet_w2.planner import placements, predict
from moet_w2.planner.machine import GIB, Machine

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
H100_GIB = 79.1


def machine(gib: float) -> Machine:
    return Machine(int(gib * GIB), 128 * GIB, 2000, 51, 9)


def test_an_80_gb_card_maps_as_few_layers_as_will_do() -> None:
    loaded = recipe.load(RECIPES / "h100-128k.yaml")
    assert loaded.device is not None and loaded.device.vram_gib == H100_GIB
    model, settings, mapped = predict.of_recipe(loaded)
    found = placements.smallest(model, machine(H100_GIB), settings)
    assert found is not None and tuple(found.mapped) == mapped == tuple(range(34, 46))
    assert placements.smallest(model, machine(60), replace(settings, utilization=0.97)).mapped != found.mapped


@pytest.mark.parametrize(("there", "here"), [("h100-128k", "h200-128k"), ("pro6000-300k", "h200-300k")])
def test_the_same_profile_on_an_h200_has_no_more_memory_than_the_card_it_stands_for(there: str, here: str) -> None:
    cards = [recipe.load(RECIPES / f"{name}.yaml") for name in (there, here)]
    budgets = [card.engine["gpu-memory-utilization"] * card.device.vram_gib for card in cards]
    assert budgets[1] == pytest.approx(budgets[0], rel=2e-4) and cards[0].w2 == cards[1].w2
    same = [{key: value for key, value in card.engine.items() if key != "gpu-memory-utilization"} for card in cards]
    assert same[0] == same[1]
