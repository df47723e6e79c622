"""The doctor's word on memory for the longest prompt: of the recipes as they are, and as one of them was."""

from pathlib import Path

import pytest
from fake_nvml import GIB, Card, Nvml, machine
from planner_support import RECIPES

from moet_w2 import command, recipe
from moet_w2.doctor import longest_prompt, nvml
from moet_w2.doctor.report import Status
from moet_w2.doctor.subject import Subject
from moet_w2.overrides import Overrides

MODEL = RECIPES.parent / "models" / "deepseek-v4-flash"


def checked(root: Path, file: Path, *cards: Card, model: Path | None = MODEL, stock: bool = False) -> list:
    loaded = recipe.load(file)
    rendered = command.render(loaded, Overrides(model_path=model), stock=stock)
    driver = nvml.read(Nvml(list(cards or (Card(total=95 * GIB, free=95 * GIB),))))
    return list(longest_prompt.check(Subject(loaded, rendered, {}, driver, machine(root))))


def variant(folder: Path, old: str, new: str) -> Path:
    text = (RECIPES / "pro6000-512k.yaml").read_text()
    assert old in text
    path = folder / "variant.yaml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(("name", "free"), [("pro6000-512k", "0.69"), ("pro6000-300k", "0.57")])
def test_the_recipes_leave_enough(tmp_path: Path, name: str, free: str) -> None:
    (found,) = checked(tmp_path, RECIPES / f"{name}.yaml")
    assert found.status is Status.OK and found.value.startswith(f"{free} GiB free by the planner's account, at ")


def test_a_higher_utilization_is_warned_of(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, variant(tmp_path, "utilization: 0.98\n", "utilization: 0.99\n"))
    assert found.status is Status.WARN and "0.5 GiB should be" in found.value
    assert "lower gpu-memory-utilization" in found.remedy


def test_what_the_account_is_not_made_for_is_said(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, variant(tmp_path, "    gb: 6 ", "    gb: auto "))
    assert found.status is Status.SKIPPED and "only a server can size" in found.value
    two = variant(tmp_path, "  block-size: 256", "  block-size: 256\n  tensor-parallel-size: 2")
    (found,) = checked(tmp_path, two, Card(), Card())
    assert found.status is Status.SKIPPED and found.value == "the account is of one GPU"
    (found,) = checked(tmp_path, RECIPES / "pro6000-512k.yaml", model=tmp_path)
    assert found.status is Status.SKIPPED and "config.json" in found.value


def test_without_w2_layers_on_a_gpu_nothing_is_said(tmp_path: Path) -> None:
    assert checked(tmp_path, RECIPES / "pro6000-512k.yaml", stock=True) == []
    assert checked(tmp_path, RECIPES / "demo-cpu.yaml", model=None) == []
