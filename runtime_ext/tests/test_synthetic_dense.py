"""What a synthetic model has beside its experts. That vLLM can load it is shown by test_draft_model.py."""

import json
from pathlib import Path

import pytest
import torch

from moet_w2 import synthetic_dense
from moet_w2.official import Tensor
from moet_w2.synthetic_dense import Dense

CPU = torch.device("cpu")
DEMO = json.loads((Path(__file__).resolve().parents[2] / "demo" / "checkpoint" / "config.json").read_text())
DSPARK = {"n_mtp_layers": 2, "dspark_target_layer_ids": [0, 1], "dspark_markov_rank": 64}
TOKENS, HIDDEN, RANK = 4000, 256, 64


def draw(name: str, dtype: str, *shape: int, fan_in: int | None = None, seed: int = 7) -> torch.Tensor:
    columns = (shape[1] if len(shape) == 2 else 0) if fan_in is None else fan_in
    return Dense(DEMO, seed, CPU).draw(Tensor(name, dtype, shape, columns))


@pytest.mark.parametrize(
    ("name", "wanted"), [("attn.wq_b", 512**-0.5), ("attn.wo_b", 512**-0.5 / 32), ("ffn.shared_experts.w2", 0.00138)]
)
def test_fp8_weights_and_their_scales_belong_together(name, wanted) -> None:
    weight = draw(f"layers.0.{name}.weight", "F8_E4M3", 256, 512)
    scales = draw(f"layers.0.{name}.scale", "F8_E8M0", 2, 4, fan_in=512)
    assert weight.dtype == torch.float8_e4m3fn and scales.dtype == torch.float8_e8m0fnu
    factors = scales.float()
    assert factors.unique().numel() == 1 and float(factors[0, 0].log2()) % 1 == 0
    assert float((weight.float() * factors[0, 0]).std()) == pytest.approx(wanted, rel=0.05)
    assert float(weight.float().abs().max()) < 448  # nothing is clipped


def test_values_follow_from_seed_and_name() -> None:
    first = draw("layers.0.hc_attn_fn", "F32", 24, 1024)
    assert torch.equal(first, draw("layers.0.hc_attn_fn", "F32", 24, 1024))
    assert not torch.equal(first, draw("layers.1.hc_attn_fn", "F32", 24, 1024))
    assert not torch.equal(first, draw("layers.0.hc_attn_fn", "F32", 24, 1024, seed=8))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers.0.attn_norm.weight", 1.0),
        ("layers.0.attn.kv_norm.weight", 1.0),
        ("layers.1.attn.compressor.norm.weight", 1.0),
        ("mtp.0.main_norm.weight", 1.0),
        ("norm.weight", 1.0),
        ("layers.0.hc_attn_scale", 1.0),
        ("hc_head_scale", 1.0),
        ("layers.0.hc_attn_base", 0.0),
        ("layers.0.attn.attn_sink", 0.0),
        ("layers.0.ffn.gate.bias", 0.0),
    ],
)
def test_vectors_are_ones_or_zeros(name, value) -> None:
    assert draw(name, "F32", 16).unique().tolist() == [value]


def test_positions_are_zero() -> None:
    assert draw("layers.1.attn.compressor.ape", "F32", 4, 1024, fan_in=0).unique().tolist() == [0.0]


def test_hash_routing_names_distinct_experts() -> None:
    table = draw("layers.0.ffn.gate.tid2eid", "I32", 500, 6, fan_in=0)
    assert table.dtype == torch.int32
    assert all(len(set(row)) == 6 for row in table.tolist())
    assert set(table.flatten().tolist()) == set(range(DEMO["n_routed_experts"]))


@pytest.fixture(scope="module")
def head() -> dict[str, torch.Tensor]:
    names = ("embed.weight", "head.weight")
    return {name: draw(name, "BF16", TOKENS, HIDDEN).float() for name in names}


def test_the_head_leans_to_the_token_that_follows(head) -> None:
    """Often, not always: what a context adds to the hidden state decides it."""
    embedding = head["embed.weight"]
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1))
    hidden = (embedding + 0.7 * noise)[:1000]
    chosen = (hidden / hidden.pow(2).mean(1, keepdim=True).sqrt() @ head["head.weight"].T).argmax(1)
    follows = float((chosen == torch.arange(1, 1001)).float().mean())
    assert 0.2 < follows < 0.95


def test_the_leader_leads_clearly(head) -> None:
    """The gap between the two likeliest tokens, beside that of a head whose rows are all alike."""
    hidden = torch.randn(300, HIDDEN, generator=torch.Generator().manual_seed(2))
    plain = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(3))
    gaps = []
    for rows in (head["head.weight"], plain):
        first, second = (hidden @ rows.T).topk(2, dim=1).values.unbind(1)
        gaps.append(float(((first - second) / first).median()))
    assert gaps[0] > 2 * gaps[1]


def test_the_tail_does_not_depend_on_the_default_dtype() -> None:
    """vLLM builds models under one of bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        made = draw("head.weight", "BF16", 40000, 32)
    finally:
        torch.set_default_dtype(torch.float32)
    norms = made.float().pow(2).mean(1).sqrt()
    assert torch.isfinite(norms).all() and float(norms.max() / norms.median()) > 6


def test_the_markov_head_knows_the_token_that_follows() -> None:
    first, second = (draw(f"mtp.2.markov_head.markov_{w}.weight", "BF16", TOKENS, RANK).float() for w in ("w1", "w2"))
    assert torch.equal((first[:1000] @ second.T).argmax(1), torch.arange(1, 1001))
    assert float(first.std()) == pytest.approx(0.5, rel=0.02)


def test_target_and_draft_are_told_apart() -> None:
    dense = Dense(DEMO | DSPARK, 0, CPU)
    names = {drafting: [name for name, _ in dense.tensors(drafting)] for drafting in (False, True)}
    assert names[False] and not any(name.startswith("mtp.") for name in names[False])
    assert names[True] and all(name.startswith("mtp.") for name in names[True])
    assert not any(".experts." in name for name in names[False] + names[True])


class Half(torch.nn.Module):
    """A model whose load_weights reaches one of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("reached", "left", "lm_head"):
            self.register_parameter(name, torch.nn.Parameter(torch.ones(2), requires_grad=False))
        self.planes = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def test_a_parameter_without_a_value_is_found() -> None:
    assert synthetic_dense.unreached(Half(), {"reached"}) == ["left", "lm_head"]
    assert synthetic_dense.unreached(Half(), {"reached"}, ("lm_head",)) == ["left"]
    assert synthetic_dense.unreached(Half(), {"reached", "left", "lm_head"}) == []
