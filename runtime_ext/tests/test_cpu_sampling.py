"""Sampling options whose Triton kernels still run interpreted: that they run at all, and give what they promise.

A kernel that the interpreter refuses ends the engine with the first request that asks for it, so every option of the
API that reaches one is called here through vLLM's own wrapper.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

VOCAB = 100
INF = float("inf")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rows(*values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))


def test_min_p(logits: torch.Tensor) -> None:
    from vllm.v1.worker.gpu.sample.min_p import apply_min_p

    want = logits.clone()
    want[1][want[1] < want[1].max() + math.log(0.2)] = -INF
    apply_min_p(logits, ints(0, 1), torch.tensor([0.0, 0.2]))
    assert torch.equal(logits, want) and torch.isinf(want).any()


def test_penalties_and_counts(logits: torch.Tensor) -> None:
    from vllm.v1.worker.gpu.sample.penalties import apply_penalties, bincount

    history = torch.zeros(2, 40, dtype=torch.int32)
    history[1, :6] = ints(3, 40, 99, 7, 7, 50)
    masks, counts = torch.full((2, (VOCAB + 31) // 32), 7, dtype=torch.int32), torch.ones(2, VOCAB, dtype=torch.int32)
    bincount(ints(1), history, ints(0, 3), ints(0, 6), masks, counts, 6)
    assert counts[1].nonzero().flatten().tolist() == [7, 50] and int(counts[1, 7]) == 2
    assert masks[1].tolist() == [1 << 3, 1 << 8, 0, 1 << 3]
    masks[0], counts[0] = 0, 0

    want = logits.clone()
    for token in (3, 40, 99, 7, 50):
        want[1, token] *= 1 / 1.5 if want[1, token] > 0 else 1.5
    for token, count in ((7, 2), (50, 1)):
        want[1, token] -= 0.3 * count + 0.2
    one, zero = torch.tensor([1.0, 1.5]), torch.tensor([0.0, 0.3])
    apply_penalties(logits, ints(0, 1), ints(0, 0), ints(0, 0), one, zero, torch.tensor([0.0, 0.2]), masks, counts)
    assert torch.allclose(logits, want, atol=1e-6)


def test_bad_words(logits: torch.Tensor) -> None:
    from vllm.v1.worker.gpu.sample.bad_words import apply_bad_words

    history = torch.zeros(2, 10, dtype=torch.int32)
    history[1, :4] = ints(1, 2, 8, 9)
    want = logits.clone()
    want[1, 33] = want[1, 21] = -INF
    words, offsets = rows([0] * 5, [33, 9, 21, 8, 22]), rows([0] * 4, [0, 1, 3, 5])
    apply_bad_words(
        logits, ints(0, 1), words, offsets, ints(0, 3), history, ints(2, 2), ints(4, 4), ints(0, 0), ints(0, 0), 3
    )
    assert torch.equal(logits, want)


@pytest.mark.parametrize("check_rows", [False, True])
def test_bias_allowed_tokens_and_min_tokens(logits: torch.Tensor, check_rows: bool) -> None:
    from vllm.v1.worker.gpu.sample.logit_bias import apply_logit_bias

    want = logits.clone()
    want[0, 5] += 2.5
    keep = want[1, [4, 6, 8]].clone()
    want[1] = -INF
    want[1, [4, 6, 8]] = keep
    want[1, 8] = -INF
    apply_logit_bias(
        logits,
        ints(0, 1),
        torch.tensor([10, 10]),
        num_allowed_token_ids=ints(0, 3),
        allowed_token_ids=rows([0, 0, 0, 0], [4, 6, 8, 0]),
        num_logit_bias=ints(1, 0),
        logit_bias_token_ids=rows([5, 0], [0, 0]),
        logit_bias=torch.tensor([[2.5, 0.0], [0.0, 0.0]]),
        min_lens=ints(0, 20),
        num_stop_token_ids=ints(0, 1),
        restore_when_all_masked=torch.tensor([False, True]),
        stop_token_ids=rows([0, 0], [8, 0]),
        check_all_masked_rows=check_rows,
    )
    assert torch.equal(logits, want)


@pytest.mark.parametrize(("budget", "forced"), [(-1, False), (2, True), (3, True), (4, False)])
def test_thinking_budget(logits: torch.Tensor, budget: int, forced: bool) -> None:
    """Three tokens since the start marker: a budget of up to three forces the end marker."""
    from vllm.v1.worker.gpu.sample.thinking_budget import apply_thinking_budget

    history = torch.zeros(2, 600, dtype=torch.int32)
    history[1, 520:524] = ints(60, 1, 2, 3)
    before = logits.clone()
    state: dict[str, Any] = {
        "cached_last_start": ints(-1, -1),
        "cached_last_end": ints(-1, -1),
        "cached_scan_pos": ints(0, 0),
    }
    apply_thinking_budget(
        logits,
        ints(1),
        ints(0, 1),
        ints(-1, budget),
        history,
        ints(10, 524),
        ints(0, 0),
        ints(0, 0),
        **state,
        reasoning_start_token_ids=ints(60),
        natural_reasoning_end_token_ids=ints(61),
        reasoning_end_token_ids=ints(61),
    )
    assert (logits.argmax(1)[1].item() == 61 and logits[1, 61].item() == 1e9) is forced
    logits[1, 61] = before[1, 61]
    assert torch.equal(logits, before)


def test_prompt_logprob_targets() -> None:
    from vllm.v1.worker.gpu.sample.prompt_logprob import get_prompt_logprobs_token_ids

    history = torch.arange(60, dtype=torch.int32).view(2, 30)
    got = get_prompt_logprobs_token_ids(7, ints(0, 3, 7), ints(1, 0), ints(2, 5), history)
    assert got.tolist() == [36, 37, 38, 3, 4, 5, 6]


def test_logprobs_of_chosen_tokens(logits: torch.Tensor) -> None:
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores

    wanted = SimpleNamespace(gpu=rows([0, 0, 0], [9, 12, 30]))
    state = SimpleNamespace(num_token_ids=SimpleNamespace(gpu=ints(0, 3)), token_ids=wanted)
    got = compute_topk_scores(logits, 2, torch.tensor([4, 5]), None, state, ints(0, 1), 3)
    best = logits[0].topk(2).indices.tolist()
    assert got.logprob_token_ids[0, :3].tolist() == [4, *best]
    assert got.logprob_token_ids[1].tolist() == [5, 9, 12, 30]
    want = logits.log_softmax(-1)
    assert torch.allclose(got.logprobs[1], want[1, [5, 9, 12, 30]], atol=1e-5)
    assert torch.isinf(got.logprobs[0, 3])
