"""Predicted prefill against servers: what it was fitted to, and what it was not."""

import re
from dataclasses import replace

import pytest
from planner_support import MODEL, result

from moet_w2.planner import costs, prefill
from moet_w2.planner.machine import card
from moet_w2.planner.settings import Settings

H200 = replace(card(link_gbs=51.3), hbm_gbs=costs.MEASURED_HBM_GBS, sm=9)
DRAFTS, WITH_TARGET = (43, 44, 45), (42, 43, 44, 45)


def seconds(mapped, tokens):
    return prefill.seconds(MODEL, H200, Settings(), mapped, tokens)


def phase(configuration, name):
    return result(f"serving_h200-{configuration}")["phases"][name]


def test_a_long_prompt_goes_on_as_it_did():
    samples = phase("300k", "prefill_250000")["progress"]["samples"]
    known = [each for each in samples if 4000 <= each["moet"] < 249_000]
    began, spent = known[0], []
    for each in known[1:]:
        predicted = seconds(DRAFTS, int(each["moet"])) - seconds(DRAFTS, int(began["moet"]))
        spent.append((each["seconds"] - began["seconds"], predicted))
    assert len(spent) > 20
    assert all(predicted == pytest.approx(measured, abs=0.2) for measured, predicted in spent)


@pytest.mark.parametrize(
    ("configuration", "name", "mapped", "bound"),
    [
        ("300k", "prefill_32768", DRAFTS, 0.02),
        ("300k", "prefill_250000", DRAFTS, 0.15),  # the rest came after the last chunk
        ("512k", "prefill_32768", WITH_TARGET, 0.02),
        ("resident", "warm_up", (), 0.15),
        ("300k", "warm_up", DRAFTS, 0.15),
        ("512k", "warm_up", WITH_TARGET, 0.15),
    ],
)
def test_the_first_token_comes_when_it_came(configuration, name, mapped, bound):
    client = phase(configuration, name)["client"]
    assert seconds(mapped, client["prompt_tokens"]) == pytest.approx(client["first_token_seconds"], rel=bound)


def test_a_mapped_target_layer_costs_its_bytes_in_each_chunk():
    more = seconds(WITH_TARGET, 32_768) - seconds(DRAFTS, 32_768)
    measured = [phase(each, "prefill_32768")["client"]["first_token_seconds"] for each in ("300k", "512k")]
    assert more == pytest.approx(measured[1] - measured[0], rel=0.15)
    # Half of a prompt that a server did not come to the end of.
    said = phase("512k", "prefill_300000")["logger"]["prefill"][0]
    tokens, rate = (int(each.replace(",", "")) for each in re.findall(r"([\d,]+) (?:of|tok/s)", said))
    assert seconds(WITH_TARGET, tokens) == pytest.approx(tokens / rate, rel=0.05)


def test_a_prompt_takes_at_least_what_a_shorter_one_does():
    found = [seconds(WITH_TARGET, tokens) for tokens in range(1, 20_000, 37)]
    assert all(after >= before - 1e-9 for before, after in zip(found, found[1:], strict=False))


def test_attention_takes_the_kernels_of_the_card():
    for sm, pair, gbs in (
        (9, costs.FLASHMLA_PAIR_NS, costs.FLASHMLA_HBM_GBS),
        (12, costs.FLASHINFER_PAIR_NS, costs.FLASHINFER_HBM_GBS),
    ):
        assert costs.attention_pair(gbs, sm) == pytest.approx(pair * 1e-9)
        assert costs.attention_pair(2 * gbs, sm) == pytest.approx(pair * 1e-9 / 2)


@pytest.mark.parametrize(("batched", "speculative", "chunk"), [(2048, 4, 2045), (2048, 0, 2048), (4, 7, 1)])
def test_chunks_leave_slots_for_drafts(batched, speculative, chunk):
    assert Settings(batched=batched, speculative=speculative).chunk == chunk
