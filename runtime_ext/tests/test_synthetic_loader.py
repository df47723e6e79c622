"""What the synthetic loader gives the parameters that are no experts."""

import pytest
import torch

from moet_w2 import plugin


@pytest.fixture(scope="module")
def loader():
    plugin.register()
    from moet_w2 import synthetic_loader

    return synthetic_loader


class Holder(torch.nn.Module):
    """A module with the parameters that it is given."""

    def __init__(self, **values: torch.Tensor) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))


def filled(loader, prefix: str, seed: str = "a", **values: torch.Tensor) -> Holder:
    module = Holder(**values)
    loader.fill(module, prefix, seed)
    return module


@pytest.mark.parametrize("scale", [torch.float32, torch.float8_e8m0fnu], ids=["float32", "e8m0"])
@pytest.mark.parametrize(("name", "wanted"), [("wq_b", 512**-0.5), ("wo_b", 512**-0.5 / 8)])
def test_fp8_weights_and_their_scales_belong_together(loader, scale, name, wanted) -> None:
    weight = torch.zeros(256, 512, dtype=torch.float8_e4m3fn)
    scales = torch.full((2, 4), 1.0).to(scale)
    made = filled(loader, f"model.layers.0.attn.{name}", weight=weight, weight_scale_inv=scales)
    factors = made.weight_scale_inv.float()
    assert factors.unique().numel() == 1 and float(factors[0, 0].log2()) % 1 == 0
    assert float((made.weight.float() * factors[0, 0]).std()) == pytest.approx(wanted, rel=0.05)
    assert float(made.weight.float().abs().max()) < 448  # nothing is clipped


def test_values_follow_from_seed_and_name(loader) -> None:
    def drawn(prefix: str, seed: str) -> torch.Tensor:
        return filled(loader, prefix, seed, weight=torch.zeros(64, 64)).weight

    assert torch.equal(drawn("model.a", "1"), drawn("model.a", "1"))
    assert not torch.equal(drawn("model.a", "1"), drawn("model.b", "1"))
    assert not torch.equal(drawn("model.a", "1"), drawn("model.a", "2"))


@pytest.mark.parametrize(
    ("prefix", "name", "value"),
    [
        ("model.layers.0.attn_norm", "weight", 1.0),
        ("model.norm", "weight", 1.0),
        ("model.layers.0", "hc_attn_scale", 1.0),
        ("model", "hc_head_scale", 1.0),
        ("model.layers.0", "hc_attn_base", 0.0),
        ("model.layers.0.attn", "attn_sink", 0.0),
        ("model.layers.0.ffn.gate", "e_score_correction_bias", 0.0),
    ],
)
def test_vectors_are_ones_or_zeros(loader, prefix, name, value) -> None:
    made = filled(loader, prefix, **{name: torch.full((16,), 7.0)})
    assert getattr(made, name).unique().tolist() == [value]


def test_hash_routing_names_distinct_experts(loader) -> None:
    table = torch.randint(0, 64, (500, 6), dtype=torch.int32)
    made = filled(loader, "model.layers.0.ffn.gate", tid2eid=table)
    assert made.tid2eid.dtype == torch.int32
    assert all(len(set(row)) == 6 for row in made.tid2eid.tolist())
    assert set(made.tid2eid.flatten().tolist()) == set(range(64))


def model(tokens: int = 4000, hidden: int = 256, rank: int = 64) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)

    def drawn(columns: int, std: float) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(tokens, columns, generator=generator) * std, requires_grad=False)

    return {
        "model.embed_tokens.weight": drawn(hidden, 1.0),
        "lm_head.weight": drawn(hidden, hidden**-0.5),
        "model.markov_head.markov_w1.weight": drawn(rank, rank**-0.5),
        "model.markov_head.markov_w2.weight": drawn(rank, rank**-0.5),
    }


def test_the_head_leans_to_the_token_that_follows(loader) -> None:
    """Often, not always: what a context adds to the hidden state decides it."""
    parameters = model()
    loader.connect(parameters, "a")
    embedding, head = parameters["model.embed_tokens.weight"], parameters["lm_head.weight"]
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1))
    hidden = (embedding + 0.7 * noise)[:1000]
    chosen = (hidden / hidden.pow(2).mean(1, keepdim=True).sqrt() @ head.T).argmax(1)
    follows = float((chosen == torch.arange(1, 1001)).float().mean())
    assert 0.2 < follows < 0.95


def test_the_leader_leads_clearly(loader) -> None:
    """The gap between the two likeliest tokens, beside that of a head whose rows are all alike."""
    gaps = {}
    hidden = torch.randn(300, 256, generator=torch.Generator().manual_seed(2))
    for tail in (True, False):
        parameters = model()
        if tail:
            loader.connect(parameters, "a")
        first, second = (hidden @ parameters["lm_head.weight"].T).topk(2, dim=1).values.unbind(1)
        gaps[tail] = float(((first - second) / first).median())
    assert gaps[True] > 2 * gaps[False]


def test_the_tail_does_not_depend_on_the_default_dtype(loader) -> None:
    """vLLM builds models under one of bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        parameters = model(tokens=40000, hidden=32)
        loader.connect(parameters, "a")
    finally:
        torch.set_default_dtype(torch.float32)
    norms = parameters["lm_head.weight"].float().pow(2).mean(1).sqrt()
    assert torch.isfinite(norms).all() and float(norms.max() / norms.median()) > 6


def test_the_markov_head_knows_the_token_that_follows(loader) -> None:
    parameters = model()
    loader.connect(parameters, "a")
    first, second = (parameters[f"model.markov_head.markov_{w}.weight"] for w in ("w1", "w2"))
    assert torch.equal((first[:1000] @ second.T).argmax(1), torch.arange(1, 1001))


def test_a_model_without_a_head_of_its_own_is_left_alone(loader) -> None:
    embedding = {"model.embed_tokens.weight": model()["model.embed_tokens.weight"]}
    before = embedding["model.embed_tokens.weight"].clone()
    loader.connect(embedding, "a")
    assert torch.equal(before, embedding["model.embed_tokens.weight"])
