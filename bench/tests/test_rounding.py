"""Rounding that is put into a model."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import rounding


def test_projections_and_norms_are_off_by_little_and_nothing_else_is() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Identity(), torch.nn.LayerNorm(64)).double()
    value = torch.randn(8, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    right = [model[0](value), model[1](value)]
    assert rounding.perturb(model) == 2
    off = (model[0](value) / right[0] - 1).abs()
    assert rounding.RELATIVE / 2 < off.max() <= rounding.RELATIVE * 1.01
    assert torch.equal(model[1](value), right[1])


def test_integers_and_further_outputs_keep_their_types() -> None:
    class PairLinear(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> tuple:
            return value, None, torch.arange(3)

    model = PairLinear()
    assert rounding.perturb(model) == 1
    made, nothing, numbers = model(torch.ones(4, dtype=torch.bfloat16))
    assert made.dtype == torch.bfloat16 and nothing is None and numbers.tolist() == [0, 1, 2]
