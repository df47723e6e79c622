"""What training computes with is what the checkpoint holds; the fast functions equal transformers' own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from demo.make import checkpoint, fp8, model
from demo.make.names import entries


@pytest.fixture(scope="module")
def weights() -> model.Weights:
    """Untrained weights."""
    return model.initial_weights(3)


@pytest.mark.parametrize("two_bit", [False, True])
def test_exported_codes_equal_what_training_computes_with(
    weights: model.Weights, two_bit: bool, tmp_path: Path
) -> None:
    checkpoint.write(tmp_path, checkpoint.to_official(weights))
    decoded = checkpoint.from_official(checkpoint.read(tmp_path), two_bit)
    computing = model.computing_model(torch.bfloat16, "cpu")
    model.serve(computing, weights, two_bit)
    held = dict(computing.named_parameters()) | dict(computing.named_buffers())
    assert decoded.keys() == weights.keys()
    for name, value in decoded.items():
        assert torch.equal(value.to(held[name].dtype), held[name]), name


def test_an_untrained_zero_is_refused_at_export(weights: model.Weights) -> None:
    broken = dict(weights)
    name = "model.layers.1.mlp.experts.down_proj"
    broken[name] = weights[name].clone()
    broken[name][7] = 0.0
    with pytest.raises(ValueError, match=r"layers\.1\.ffn\.experts\.7\.w2\.weight: over 95%"):
        checkpoint.to_official(broken)


def test_fast_functions_equal_transformers_own(weights: model.Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounding of cached rows would turn float noise into steps.
    monkeypatch.setattr(fp8, "fake_quantise_row", lambda row: row)
    tokens = torch.randint(3, 700, (1, 140), generator=torch.Generator().manual_seed(4))
    results = []
    for plain in (True, False):
        computing = model.computing_model(torch.float32, "cpu", plain)
        model.serve(computing, weights, two_bit=False)
        for name, parameter in computing.named_parameters():
            if name.endswith("sinks"):
                parameter.data = torch.linspace(-1.0, 2.0, len(parameter))
        hidden = model.hidden_states(computing, tokens)
        (hidden * torch.linspace(-1.0, 1.0, hidden.shape[-1])).sum().backward()
        names = ("layers.1.mlp.experts.gate_up_proj", "layers.2.self_attn.sinks", "layers.0.self_attn.kv_proj.weight")
        parameters = dict(computing.model.named_parameters())
        results.append([hidden.detach(), *(parameters[n].grad for n in names)])
    for ours, theirs in zip(*results, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-4


def test_the_mask_is_transformers_own(weights: model.Weights) -> None:
    computing = model.computing_model(torch.float32, "cpu")
    model.serve(computing, weights, two_bit=False)
    tokens = torch.randint(3, 700, (1, 140), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        theirs = computing.model(tokens, use_cache=False).last_hidden_state
        assert torch.allclose(model.hidden_states(computing, tokens), theirs, atol=1e-5)


def test_every_weight_of_the_model_has_a_place_in_the_checkpoint(weights: model.Weights) -> None:
    computing = model.computing_model(torch.float32, "cpu")
    names = {n for n, _ in computing.named_parameters()} | {n for n in weights}
    assert names == {entry.ours for entry in entries()} == set(model.STORAGE)
