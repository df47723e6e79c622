import pytest
import torch
from generators import TINY, filled_layer

from moet_w2 import codebook, reference
from moet_w2.layer import W2Layer

LIMIT = 10.0


def expected_moe(layer_tensors, x, weights, ids, limit):
    """Float64, straight from the checkpoint's tensors, without planes."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token].tolist(), ids[token].tolist(), strict=True):
            if expert < 0:
                continue
            w1, w2, w3 = (dense(layer_tensors, expert, p) for p in ("w1", "w2", "w3"))
            row = x[token].double()
            gate, up = (w1 @ row).clamp(max=limit), (w3 @ row).clamp(-limit, limit)
            out[token] += weight * (w2 @ (torch.nn.functional.silu(gate) * up))
    return out


def dense(layer_tensors, expert, projection):
    codes = codebook.to_two_bit(layer_tensors[expert, projection, "weight"])
    values = codebook.two_bit_values(torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2))
    scale = codebook.scale_values(layer_tensors[expert, projection, "scale"].view(torch.uint8))
    return (values * scale.repeat_interleave(32, dim=-1)).double()


def relative_error(out, expected):
    return float((out.double() - expected).norm() / expected.norm())


@pytest.fixture(scope="module")
def filled() -> tuple[W2Layer, dict]:
    return filled_layer(TINY)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_moe_equals_the_formula(filled, tokens, dtype, bound) -> None:
    layer, tensors = filled
    generator = torch.Generator().manual_seed(tokens)
    x = (torch.randn(tokens, TINY.hidden, generator=generator) * 2).to(dtype)
    ids = torch.stack([torch.randperm(TINY.experts, generator=generator)[:3] for _ in range(tokens)])
    weights = torch.rand(tokens, 3, generator=generator)
    out = reference.moe(layer, x, weights, ids.int(), LIMIT)
    assert out.dtype == dtype
    assert relative_error(out, expected_moe(tensors, x, weights, ids, LIMIT)) < bound


def test_the_clamp_bites(filled) -> None:
    layer, tensors = filled
    x = torch.randn(4, TINY.hidden) * 40
    ids, weights = torch.zeros(4, 1, dtype=torch.int32), torch.ones(4, 1)
    clamped = reference.moe(layer, x, weights, ids, 1.0)
    assert relative_error(clamped, expected_moe(tensors, x, weights, ids, 1.0)) < 1e-5
    assert not torch.allclose(clamped, reference.moe(layer, x, weights, ids, None))


def test_clamp_is_one_sided_for_the_gate() -> None:
    out = reference.clamped_swiglu(torch.tensor([[-30.0, 30.0, -30.0, 30.0]]), 10.0)
    silu = torch.nn.functional.silu(torch.tensor([-30.0, 10.0]))
    assert torch.equal(out[0], silu * torch.tensor([-10.0, 10.0]))


def test_padded_rows_add_nothing(filled) -> None:
    layer, tensors = filled
    x, weights = torch.randn(3, TINY.hidden), torch.ones(3, 2)
    ids = torch.tensor([[0, 1], [-1, -1], [2, -1]], dtype=torch.int32)
    out = reference.moe(layer, x, weights, ids, LIMIT)
    assert not out[1].any()
    assert relative_error(out, expected_moe(tensors, x, weights, ids, LIMIT)) < 1e-5


def test_no_token_at_all(filled) -> None:
    layer, _ = filled
    ids = torch.empty(0, 2, dtype=torch.int32)
    out = reference.moe(layer, torch.empty(0, TINY.hidden), torch.empty(0, 2), ids, LIMIT)
    assert out.shape == (0, TINY.hidden)
