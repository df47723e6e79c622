"""Every plain operation against the compiled one of vLLM's AVX512-BF16 build, on random inputs.

The two round at different places (BF16 probabilities, fast exponentials, tile products), so floating-point results are
compared by the largest error relative to the largest value; bounds stand beside each case. Integers, slots and bytes
that must not change are compared exactly. Where the processor cannot run the compiled operations these comparisons are
skipped, and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")
import vllm._custom_ops  # noqa: F401  (loads vLLM's C extension)

from moet_w2.cpu import capability, ops
from moet_w2.cpu.ops import cache, experts, indexer

compiled_only = pytest.mark.skipif(
    not capability.has_op("flash_mla_with_kvcache_cpu") or not torch.cpu._is_avx512_bf16_supported(),
    reason="this processor cannot run the compiled operations that the plain ones are compared with",
)
BLOCK, BLOCKS = 64, 12
SEEDS = range(3)


@dataclass
class Case:
    """Arguments in order; results of the call and of written arguments are compared within ``bound``."""

    arguments: list[Any]
    written: tuple[int, ...] = ()
    bound: float = 0.0


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(g: torch.Generator, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=g) * scale).to(dtype)


def integers(g: torch.Generator, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=g, dtype=dtype)


def angles(positions: int) -> torch.Tensor:
    theta = torch.arange(positions).unsqueeze(1) * torch.exp(-torch.arange(32) / 8)
    return torch.cat((theta.cos(), theta.sin()), dim=1)


def pool(width: int) -> torch.Tensor:
    """A cache whose blocks lie further apart than they are wide, as in vLLM's shared allocation."""
    return torch.zeros(BLOCKS, width + 192, dtype=torch.uint8)[:, :width]


def attention_cache(g: torch.Generator) -> torch.Tensor:
    memory = pool(BLOCK * (cache.TOKEN_BYTES + cache.SCALE_BYTES))
    slots = torch.arange(BLOCK * BLOCKS)
    cache.write_tokens(memory, slots, normal(g, len(slots), 448).bfloat16().float(), normal(g, len(slots), 64), BLOCK)
    return memory


def key_cache(g: torch.Generator) -> torch.Tensor:
    memory = pool(BLOCK * 132)
    slots = torch.arange(BLOCK * BLOCKS)
    cache.write_keys(memory, slots, normal(g, len(slots), 128).bfloat16().float(), BLOCK)
    return memory


def chosen_slots(g: torch.Generator, rows: int, width: int, limit: int) -> torch.Tensor:
    slots = torch.stack([torch.randperm(limit, generator=g)[:width] for _ in range(rows)])
    slots[integers(g, 0, 3, rows, width) == 0] = -1
    return slots.contiguous()


def biased_topk(g: torch.Generator) -> Case:
    logits = normal(g, 9, 64, scale=2)
    return Case([logits, logits, normal(g, 64, scale=0.1), 6, True, "sqrtsoftplus", 0, 1.5, True], bound=1e-5)


def hash_topk(g: torch.Generator) -> Case:
    table = torch.stack([torch.randperm(64, generator=g)[:6] for _ in range(9)]).int()
    return Case([normal(g, 9, 64, scale=2), table, 6, "sqrtsoftplus", 0, 64, 1.5], bound=1e-5)


def hc_pre(g: torch.Generator) -> Case:
    x = normal(g, 7, 4, 256, dtype=torch.bfloat16)
    return Case([x, normal(g, 24, 1024, scale=0.05), normal(g, 3), normal(g, 24), 4, 20, 1e-6, 1e-6], bound=8e-3)


def hc_post(g: torch.Generator) -> Case:
    x, residual = normal(g, 7, 256, dtype=torch.bfloat16), normal(g, 7, 4, 256, dtype=torch.bfloat16)
    return Case([x, residual, normal(g, 7, 4).abs(), normal(g, 7, 4, 4).softmax(-1)], bound=8e-3)


def hc_head(g: torch.Generator) -> Case:
    x = normal(g, 7, 4, 256, dtype=torch.bfloat16)
    return Case([x, normal(g, 4, 1024, scale=0.05), normal(g, 1), normal(g, 4), 1e-6, 1e-6], bound=8e-3)


def qnorm_rope_kv_insert(g: torch.Generator) -> Case:
    slots = torch.randperm(BLOCK * BLOCKS, generator=g)[:9]
    slots[2] = -1
    memory = pool(BLOCK * 584)
    q, kv = normal(g, 9, 4, 512, dtype=torch.bfloat16), normal(g, 9, 512, dtype=torch.bfloat16)
    return Case([q, kv, integers(g, 0, 500, 9), memory, slots, angles(500), 6, 1e-6, BLOCK], written=(3,), bound=8e-3)


def sparse_attention(g: torch.Generator) -> Case:
    q = normal(g, 11, 4, 512, dtype=torch.bfloat16)
    window, compressed = chosen_slots(g, 11, 128, BLOCK * BLOCKS), chosen_slots(g, 11, 200, BLOCK * BLOCKS)
    window[3] = compressed[3] = -1
    out = torch.full_like(q, 7)
    case = [out, q, attention_cache(g), window, BLOCK, attention_cache(g), compressed, BLOCK, normal(g, 4), 512**-0.5]
    return Case(case, written=(0,), bound=1.5e-2)


def window_attention(g: torch.Generator) -> Case:
    q, memory = normal(g, 2, 4, 512, dtype=torch.bfloat16), attention_cache(g)
    window, none = chosen_slots(g, 2, 128, BLOCK * BLOCKS), torch.full((2, 0), -1)
    case = [torch.zeros_like(q), q, memory, window, BLOCK, memory, none, 1, normal(g, 4), 512**-0.5]
    return Case(case, written=(0,), bound=1.5e-2)


def inverse_rope(g: torch.Generator) -> Case:
    return Case([normal(g, 9, 4, 512, dtype=torch.bfloat16), integers(g, 0, 500, 9), angles(500), 64], bound=8e-3)


def save_states(g: torch.Generator) -> Case:
    both = normal(g, 9, 1024)
    slots = torch.randperm(4 * 5, generator=g)[:9]
    slots[1] = -1
    state = torch.zeros(5, 4, 1024)
    return Case([both[:, :512], both[:, 512:], normal(g, 4, 512), integers(g, 0, 99, 9), state, slots], written=(4,))


def compress(g: torch.Generator, dim: int, ratio: int, width: int) -> Case:
    overlap = 2 if ratio == 4 else 1
    state = normal(g, 80, 4, 2 * overlap * dim)
    positions = torch.tensor([ratio - 1, 2 * ratio - 1, 9 * ratio - 1, 2 * ratio, 3 * ratio - 1])
    gather = integers(g, 0, 320, 5, overlap * ratio)
    gather[0, : (overlap - 1) * ratio] = -1
    slots = torch.randperm(BLOCK * BLOCKS, generator=g)[:5]
    slots[4] = -1
    memory, weight = pool(BLOCK * width), 1 + normal(g, dim, scale=0.1)
    case = [state, gather, positions, slots, weight, 1e-6, angles(9 * ratio), memory, BLOCK, ratio]
    return Case(case, written=(7,))


def index_query(g: torch.Generator) -> Case:
    q = normal(g, 5, 64, 128)
    out, weights = torch.zeros(5, 64, 128, dtype=torch.float8_e4m3fn), torch.zeros(5, 64)
    case = [integers(g, 0, 500, 5), q, angles(500), out, normal(g, 5, 64), 128**-0.5, 64**-0.5, weights]
    return Case(case, written=(3, 7), bound=7e-2)


def paged_logits(g: torch.Generator) -> Case:
    q = normal(g, 6, 64, 128, scale=4).to(torch.float8_e4m3fn)
    table = torch.stack([torch.randperm(BLOCKS, generator=g)[:10] for _ in range(2)])[[0, 0, 0, 1, 1, 1]].int()
    lengths = torch.tensor([1, 300, 640, 17, 0, 555], dtype=torch.int32)
    return Case([q, key_cache(g), normal(g, 6, 64), lengths, table.contiguous(), BLOCK, 640], bound=1e-2)


CASES: dict[str, list[Callable[[torch.Generator], Case]]] = {
    "biased_topk_cpu": [biased_topk],
    "hash_topk_cpu": [hash_topk],
    "hc_pre_fused_cpu": [hc_pre],
    "hc_post_fused_cpu": [hc_post],
    "hc_head_fused_cpu": [hc_head],
    "fused_qnorm_rope_kv_insert_cpu": [qnorm_rope_kv_insert],
    "flash_mla_with_kvcache_cpu": [sparse_attention, window_attention],
    "inverse_gptj_rope_o_proj_cpu": [inverse_rope],
    "save_partial_states_cpu": [save_states],
    "compress_norm_rope_store_cpu": [lambda g: compress(g, 512, 4, 584), lambda g: compress(g, 512, 128, 584)],
    "compress_norm_rope_store_indexer_cpu": [lambda g: compress(g, 128, 4, 132)],
    "fused_indexer_q_rope_quant_cpu": [index_query],
    "fp8_paged_mqa_logits_cpu": [paged_logits],
}
"""Operations compared argument for argument. The others have tests of their own below."""

SEPARATE = {
    "convert_weight_packed",
    "convert_scale_packed",
    "bmm_cpu",
    "fused_experts_cpu",
    "topk_transform_512_cpu",
}


def plain(name: str) -> Callable[..., Any]:
    return next(op.function for op in ops.TABLE if op.name == name)


def copied(arguments: list[Any]) -> list[Any]:
    """Arguments again in memory of their own, strides kept."""
    out = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            twin = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
            out.append(twin.copy_(value))
        else:
            out.append(value)
    return out


def read_back(name: str, memory: torch.Tensor) -> torch.Tensor:
    """Cached bytes as the numbers they stand for."""
    slots = torch.arange(BLOCK * BLOCKS)
    if name == "compress_norm_rope_store_indexer_cpu":
        keys, scale = cache.read_keys(memory, slots, BLOCK)
        return keys * scale.unsqueeze(1)
    return cache.read_tokens(memory, slots, BLOCK)


CACHE_BOUND = 0.04
"""An E4M3 value that lies on a rounding boundary may go either way: one step of 1/16, of values below the largest."""


def relative_error(want: torch.Tensor, got: torch.Tensor) -> float:
    want, got = want.double(), got.double()
    return float((want - got).abs().max() / want.abs().max().clamp(min=1e-6))


def test_every_operation_is_tested() -> None:
    assert {op.name for op in ops.TABLE} == set(CASES) | SEPARATE


@compiled_only
def test_schemas_equal_the_compiled_ones() -> None:
    """Same names, types and order; alias marks may differ, as vLLM's own are partly inferred."""
    for op in ops.TABLE:
        want = getattr(torch.ops._C, op.name).default._schema
        got = torch._C.parse_schema(f"_C::{op.schema}")
        assert [(a.name, str(a.type)) for a in got.arguments] == [(a.name, str(a.type)) for a in want.arguments]
        assert [str(r.type) for r in got.returns] == [str(r.type) for r in want.returns], op.name


@compiled_only
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "index"), [(n, i) for n, cases in CASES.items() for i in range(len(cases))])
def test_plain_equals_compiled(name: str, index: int, seed: int) -> None:
    case = CASES[name][index](generator(seed))
    theirs, ours = copied(case.arguments), copied(case.arguments)
    want, got = getattr(torch.ops._C, name)(*theirs), plain(name)(*ours)
    pairs = list(zip(want, got, strict=True)) if isinstance(want, tuple) else [] if want is None else [(want, got)]
    for a, b in pairs:
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype == torch.int32:
            assert torch.equal(a.sort(-1).values, b.sort(-1).values)
        elif name == "fp8_paged_mqa_logits_cpu":
            seen = torch.arange(a.shape[1]) < case.arguments[3].unsqueeze(1)
            assert relative_error(a[seen], b[seen]) <= case.bound
            assert torch.isinf(b[~seen]).all()
        else:
            a, b = (a.sort(-1).values, b.sort(-1).values) if "topk" in name else (a, b)
            assert relative_error(a, b) <= case.bound
    for position in case.written:
        a, b = theirs[position], ours[position]
        assert not torch.equal(b.float(), case.arguments[position].float()), "the operation wrote nothing"
        if a.dtype == torch.uint8:
            a, b = read_back(name, a), read_back(name, b)
            assert relative_error(a, b) <= CACHE_BOUND
            assert float((a != b).double().mean()) < 0.01
        else:
            assert relative_error(a.float(), b.float()) <= case.bound


def mxfp4_experts(g: torch.Generator, experts: int, hidden: int, inner: int) -> list[torch.Tensor]:
    """Random codes and scales: w1 [E, 2I, H/2], w2 [E, H, I/2], and their scales, uint8."""
    codes = [(2 * inner, hidden // 2), (hidden, inner // 2)]
    scales = [(2 * inner, hidden // 32), (hidden, inner // 32)]
    return [integers(g, 0, 256, experts, *shape, dtype=torch.uint8) for shape in codes] + [
        integers(g, 119, 124, experts, *shape, dtype=torch.uint8) for shape in scales
    ]


@compiled_only
def test_plain_experts_equal_compiled() -> None:
    """With a limit that no activation reaches: the compiled operation does not clamp at all."""
    g = generator(5)
    w1, w2, s1, s2 = mxfp4_experts(g, 64, 256, 128)
    x = normal(g, 9, 256, scale=0.3, dtype=torch.bfloat16)
    ids = torch.stack([torch.randperm(64, generator=g)[:6] for _ in range(9)]).int()
    weights = normal(g, 9, 6).softmax(-1)
    want, got = torch.zeros_like(x), torch.zeros_like(x)

    def call(function: Callable[..., Any], out: torch.Tensor, w: Callable[..., Any], s: Callable[..., Any]) -> None:
        function(out, x, w(w1), w(w2), weights, ids, 4, s(s1), s(s2), *[None] * 7, 10.0, True)

    native = torch.ops._C
    call(native.fused_experts_cpu, want, native.convert_weight_packed, native.convert_scale_packed)
    call(plain("fused_experts_cpu"), got, plain("convert_weight_packed"), plain("convert_scale_packed"))
    assert relative_error(want, got) <= 1.5e-2
    assert want.abs().max() > 0.1


@pytest.mark.parametrize("limit", [10.0, 0.25])
def test_plain_experts_clamp(limit: float) -> None:
    """Against a float64 loop over tokens; the lower limit is one that activations do reach."""
    g = generator(9)
    w1, w2, s1, s2 = mxfp4_experts(g, 4, 64, 32)
    x, ids, weights = normal(g, 5, 64), integers(g, 0, 4, 5, 2, dtype=torch.int32), normal(g, 5, 2).softmax(-1)
    got, reached = torch.zeros(5, 64), False
    plain("fused_experts_cpu")(got, x, w1, w2, weights, ids, 4, s1, s2, *[None] * 7, limit, True)
    for token in range(5):
        want = torch.zeros(64, dtype=torch.float64)
        for choice in range(2):
            e = int(ids[token, choice])
            gate, up = (experts.dequantise(w1[e], s1[e]).double() @ x[token].double()).chunk(2)
            reached |= bool((gate > limit).any() and (up.abs() > limit).any())
            hidden = torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
            want += float(weights[token, choice]) * (experts.dequantise(w2[e], s2[e]).double() @ hidden)
        assert relative_error(want, got[token]) <= 1e-5
    assert reached == (limit < 1)


def test_plain_experts_skip_padding() -> None:
    g = generator(6)
    w1, w2 = integers(g, 0, 256, 2, 64, 16, dtype=torch.uint8), integers(g, 0, 256, 2, 32, 16, dtype=torch.uint8)
    s1, s2 = torch.full((2, 64, 1), 124, dtype=torch.uint8), torch.full((2, 32, 1), 124, dtype=torch.uint8)
    x, out = normal(g, 2, 32), torch.full((2, 32), 9.0)
    ids = torch.tensor([[0, 1], [-1, -1]], dtype=torch.int32)
    plain("fused_experts_cpu")(out, x, w1, w2, torch.ones(2, 2), ids, 4, s1, s2, *[None] * 7, 10.0, True)
    assert out[0].abs().max() > 0 and (out[1] == 0).all()


@compiled_only
def test_plain_bmm_equals_compiled() -> None:
    g = generator(7)
    a, w = normal(g, 2, 9, 1024, dtype=torch.bfloat16), normal(g, 2, 128, 1024, dtype=torch.bfloat16)
    want, got = a.new_empty(2, 9, 128), a.new_empty(2, 9, 128)
    torch.ops._C.bmm_cpu(want, a, torch.ops._C.convert_weight_packed(w), True, None)
    plain("bmm_cpu")(got, a, plain("convert_weight_packed")(w), True, None)
    assert relative_error(want, got) <= 8e-3


@compiled_only
@pytest.mark.parametrize("keys", [100, 512, 900])
def test_plain_topk_equals_compiled(keys: int) -> None:
    g = generator(8)
    scores = normal(g, 5, keys)
    lengths = torch.tensor([0, 1, keys // 2, keys - 1, keys], dtype=torch.int32)
    table = torch.stack([torch.randperm(99, generator=g)[: keys // BLOCK + 1] for _ in range(5)]).int()
    outs = [torch.zeros(5, indexer.TOPK, dtype=torch.int32) for _ in range(4)]
    torch.ops._C.topk_transform_512_cpu(scores, lengths, table, outs[0], BLOCK, outs[1])
    plain("topk_transform_512_cpu")(scores, lengths, table, outs[2], BLOCK, outs[3])
    for a, b in ((outs[0], outs[2]), (outs[1], outs[3])):
        assert torch.equal(a.sort(1).values, b.sort(1).values)


def test_dequantised_codes_are_exact() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16)
    values = plain_values(codes)
    scales = torch.arange(120, 136, dtype=torch.uint8).view(16, 1)
    assert torch.equal(experts.dequantise(codes, scales), values * 2.0 ** (scales.float() - 127))


def plain_values(codes: torch.Tensor) -> torch.Tensor:
    """Low nibble first; sign, two exponent bits, one mantissa bit."""
    table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    rows = [[n for byte in row for n in (byte & 15, byte >> 4)] for row in codes.tolist()]
    return torch.tensor([[(-1 if n & 8 else 1) * table[n & 7] for n in row] for row in rows])
