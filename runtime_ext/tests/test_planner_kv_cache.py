"""The planner's KV cache against vLLM's own: the same specs, through vLLM's grouping and its capacity report."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moet_w2.planner import kv_cache
from moet_w2.planner.model import FLASH, from_config

BLOCK = 256


def specs(model):
    """What the layers' get_kv_cache_spec return on CUDA, for kv-cache-dtype fp8 (vllm/models/deepseek_v4)."""
    from vllm.v1.kv_cache_interface import KVQuantMode, MLAAttentionSpec, SlidingWindowMLASpec

    shared = {"num_kv_heads": 1, "max_tp_shards": 1, "alignment": 576}
    fp8 = {
        "dtype": torch.uint8,
        "cache_dtype_str": "fp8_ds_mla",
        "model_version": "deepseek_v4",
        "kv_quant_mode": KVQuantMode.FP8_PER_TENSOR,
        "state_content_bytes": 584,
    }

    def state(head_dim, ratio):
        overlap = 2 if ratio == 4 else 1
        return SlidingWindowMLASpec(
            block_size={4: 4, 128: 8}[ratio],
            head_size=2 * overlap * head_dim,
            dtype=torch.float32,
            sliding_window=overlap * ratio,
            **shared,
        )

    found = {}
    for key in range(model.layers):
        attn, ratio = f"model.layers.{key}.attn", model.ratio(key)
        if ratio == 4:
            found[f"{attn}.indexer.k_cache"] = MLAAttentionSpec(
                block_size=BLOCK, head_size=132, dtype=torch.uint8, tokens_per_state=4, **shared
            )
            found[f"{attn}.indexer.compressor.state_cache"] = state(model.index_dim, ratio)
        found[f"{attn}.swa_cache"] = SlidingWindowMLASpec(
            block_size=64, head_size=model.head_dim, sliding_window=model.window, **shared, **fp8
        )
        if ratio:
            found[attn] = MLAAttentionSpec(
                block_size=BLOCK, head_size=model.head_dim, tokens_per_state=ratio, **shared, **fp8
            )
            found[f"{attn}.compressor.state_cache"] = state(model.head_dim, ratio)
    return found


def config(context, in_flight):
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, tensor_parallel_size=1, pipeline_parallel_size=1
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        num_prefill_lookahead_tokens=1,
        max_in_flight_tokens=in_flight,
        model_config=SimpleNamespace(
            max_model_len=context,
            original_max_model_len=context,
            hf_config=SimpleNamespace(model_type="deepseek_v4"),
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.BLHNC,
        ),
    )


def reported(model, nbytes, context, in_flight):
    """(blocks of the pool, KV tokens) that vLLM makes of a memory size."""
    from vllm.v1.core import kv_cache_utils

    vllm_config = config(context, in_flight)
    (made,) = kv_cache_utils.get_kv_cache_configs(vllm_config, [specs(model)], [nbytes])
    return made.num_blocks, kv_cache_utils.get_kv_cache_capacity(vllm_config, made)[0]


@pytest.fixture(scope="module")
def flash():
    return from_config(FLASH)


@pytest.mark.parametrize(
    ("context", "nbytes"),
    [(300_000, 3_618_940_210), (524_288, 6_444_823_104), (4096, 2 << 30), (1_048_576, 8 << 30)],
)
def test_tokens_are_those_that_vllm_reports(flash, context, nbytes):
    layout = kv_cache.layout(flash)
    for in_flight in (2048, 4096):
        blocks, tokens = reported(flash, nbytes, context, in_flight)
        assert nbytes // layout.block_bytes == blocks
        assert layout.tokens(nbytes, context, in_flight) == tokens


def test_flash_has_the_groups_that_the_docstring_tells(flash):
    layout = kv_cache.layout(flash)
    assert [(group.block, group.window, len(group.pages)) for group in layout.groups] == [
        (64, 128, 23),
        (64, 128, 23),
        (256, None, 62),
        (4, 8, 42),
        (8, 128, 20),
    ]
    assert layout.block_bytes == 1_002_240
    assert layout.blocks(300_000, 4096) == 1172 + 1690
    assert layout.blocks(524_288, 4096) == 2048 + 1690


def test_the_smallest_pool_that_vllm_accepts(flash):
    needed = kv_cache.layout(flash).needed(300_000, 4096)
    reported(flash, needed, 300_000, 4096)
    with pytest.raises(ValueError, match="KV cache is needed"):
        reported(flash, needed - 1, 300_000, 4096)


@settings(max_examples=25, deadline=None)
@given(
    ratios=st.lists(st.sampled_from([0, 4, 128]), min_size=1, max_size=12),
    drafts=st.integers(0, 3),
    context=st.integers(1, 100_000),
    in_flight=st.sampled_from([512, 2048, 4096]),
)
def test_other_models_are_grouped_as_vllm_does(ratios, drafts, context, in_flight):
    model = from_config(FLASH | {"num_hidden_layers": len(ratios), "compress_ratios": ratios}, drafts)
    layout = kv_cache.layout(model)
    nbytes = layout.needed(context, in_flight) + 12345
    blocks, tokens = reported(model, nbytes, context, in_flight)
    assert nbytes // layout.block_bytes == blocks
    assert layout.tokens(nbytes, context, in_flight) == tokens


@given(context=st.integers(1, 1 << 20), more=st.integers(0, 1 << 16), in_flight=st.integers(1, 8192))
def test_a_longer_request_never_takes_fewer_blocks(context, more, in_flight):
    layout = kv_cache.layout(from_config(FLASH))
    assert layout.blocks(context, in_flight) <= layout.blocks(context + more, in_flight)
