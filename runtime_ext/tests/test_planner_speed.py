"""Predicted rates: against committed kernel results, and what must hold for any wish."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_support import MODEL, WISHES, result

from moet_w2.errors import ConfigError
from moet_w2.planner import costs, prefill, speed
from moet_w2.planner.machine import card
from moet_w2.planner.placements import last
from moet_w2.planner.settings import Settings
from moet_w2.planner.speed import Load


@given(
    settings=WISHES,
    requests=st.integers(1, 16),
    link=st.floats(5, 100),
    hits=st.floats(0, 1),
)
def test_the_rate_falls_with_every_mapped_layer(settings, requests, link, hits):
    machine = card(link_gbs=link)
    model = MODEL if settings.speculative else replace(MODEL, draft_layers=0)
    load = Load(requests, correction_hits=hits)
    rates = [
        speed.decode(model, machine, settings, last(model, count), load).tokens_per_s
        for count in range(0, model.layers + 1, 5)
    ]
    assert rates == sorted(rates, reverse=True)


def test_without_a_link_a_mapped_layer_has_no_rate():
    machine = card(link_gbs=None)
    assert speed.decode(MODEL, machine, Settings(), ()).tokens_per_s > 0
    for predict in (speed.decode, lambda *given: prefill.seconds(*given, 4096)):
        with pytest.raises(ConfigError, match="--pcie-gbs"):
            predict(MODEL, machine, Settings(), (45,))


@given(tokens=st.integers(1, 4096))
def test_distinct_experts_are_at_most_all(tokens):
    found = speed.distinct(256, 6, tokens)
    assert min(256, 6) * (tokens > 0) <= found + 1e-9 and found <= min(256, 6 * tokens) + 1e-9


def test_distinct_experts_are_those_that_the_benchmark_drew():
    kernels = result("kernels_h200")
    for point in kernels["tokens"]:
        if point["tier"] == "base":
            assert speed.distinct(256, 6, point["tokens"]) == pytest.approx(point["experts"], rel=0.03)


def test_the_cost_table_is_the_committed_result():
    kernels = result("kernels_h200")
    found = costs.from_result(kernels)
    assert [tokens for tokens, _ in found.chain_us] == [tokens for tokens, _ in costs.CHAIN_US]
    for (_, measured), (_, written) in zip(found.chain_us, costs.CHAIN_US, strict=True):
        assert written == pytest.approx(measured, rel=0.1)
    assert costs.MEASURED_HBM_GBS == pytest.approx(found.hbm_gbs, rel=0.05)
    assert costs.FP4_OVER_BASE == pytest.approx(found.fp4_over_base, rel=0.1)


def test_a_fast_card_waits_for_launches_where_the_context_is_short():
    slow, fast = card(), replace(card(), hbm_gbs=1e5)
    launched, tokens = costs.PREFILL_LAUNCH_US * 1e-6 * 43, 10 * Settings().chunk
    assert prefill.seconds(MODEL, fast, Settings(), (), tokens) == pytest.approx(10 * launched)
    assert prefill.seconds(MODEL, slow, Settings(), (), tokens) > 11 * launched
    # A last chunk that a graph launches takes what the card takes; one that is longer waits like any other.
    graph = Settings().graph_tokens
    assert prefill.seconds(MODEL, fast, Settings(), (), tokens + graph) < 10.1 * launched
    assert prefill.seconds(MODEL, fast, Settings(), (), tokens + graph + 1) == pytest.approx(11 * launched)


@given(count=st.integers(1, 40), first=st.floats(0, 2), growth=st.floats(0.01, 1), least=st.floats(0, 5))
def test_chunks_take_what_they_take_one_by_one(count, first, growth, least):
    # In steps of a hundredth of a chunk, each with the growth of its middle.
    parts = ((first + growth * (part + 0.5) / 100) for part in range(100 * count))
    assert prefill.chunks(count, first, growth, least) == pytest.approx(
        sum(max(part, least) for part in parts) / 100, rel=1e-3
    )


def test_the_link_share_is_the_committed_result():
    mapped = result("kernels_mapped_h200")
    shares = [point["share_of_ceiling"]["chain"] for point in mapped["tokens"]]
    assert min(shares) - 0.01 <= costs.LINK_SHARE <= max(shares)


def test_a_measured_point_is_given_back_on_the_card_it_is_from():
    for tokens, microseconds in costs.CHAIN_US:
        found = costs.Costs()
        assert found.fixed() + found.reads(tokens, costs.MEASURED_HBM_GBS) == pytest.approx(microseconds * 1e-6)


def test_keys_of_a_long_context_take_time():
    short, long = (speed.decode(MODEL, card(), Settings(), (), Load(context=n)).step_seconds for n in (2048, 500_000))
    assert 0.1e-3 < long - short < 2e-3


def test_a_mapped_layer_reads_less_over_the_link_where_experts_are_corrected():
    plain, corrected = (
        speed.decode(MODEL, card(), Settings(), (42,), Load(correction_hits=hits)).link_bytes for hits in (0.0, 1.0)
    )
    assert plain == pytest.approx(speed.distinct(256, 6, 5) * MODEL.geometry.nbytes / 256)
    assert corrected == pytest.approx(plain / 9)  # scales alone: one byte for 32 weights, eight are codes


def test_bytes_that_were_counted_take_the_place_of_those_drawn():
    mapped = (42, 43, 44, 45)
    drawn = speed.decode(MODEL, card(), Settings(), mapped, Load(4))
    assert speed.decode(MODEL, card(), Settings(), mapped, Load(4, link_bytes=drawn.link_bytes)) == drawn
    half = speed.decode(MODEL, card(), Settings(), mapped, Load(4, link_bytes=drawn.link_bytes / 2))
    saved = drawn.link_bytes / 2 / (51e9 * costs.LINK_SHARE)
    assert half.link_bytes == drawn.link_bytes / 2
    assert drawn.step_seconds - half.step_seconds == pytest.approx(saved)


def test_without_mapped_layers_nothing_is_read_over_the_link():
    plain = speed.decode(MODEL, card(), Settings(), ())
    assert plain.link_bytes == 0 and plain.seconds["experts over the link"] == 0


def test_the_pool_has_no_more_slots_than_experts():
    assert Settings().slots(MODEL) == 512
    assert Settings(correction_bytes=1 << 40).slots(MODEL) == 43 * 256
    assert Settings(correction_bytes=1 << 40, excluded=tuple(range(46))).slots(MODEL) == 0
    assert speed.hit_rate(MODEL, Settings(correction_bytes=1 << 40), Load()) == 1


def test_more_accepted_tokens_are_more_tokens_a_second():
    slow, fast = (speed.decode(MODEL, card(), Settings(), (), Load(tokens_per_step=n)) for n in (1.0, 3.0))
    assert fast.tokens_per_s == pytest.approx(3 * slow.tokens_per_s)
