"""Fixtures that several tests share."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from generators import TINY, device_layer, write_checkpoint

from moet_w2.host_memory import HostAllocation
from moet_w2.layer import W2Layer
from moet_w2.placement import Placement
from moet_w2.topology import Locality


def vllm_config(folder: Path, v2: bool = True, load_format: str = "auto", **parallel):
    defaults = {
        "enable_expert_parallel": False,
        "enable_eplb": False,
        "pipeline_parallel_size": 1,
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "worker_cls": "generators.Worker",
    }
    hf_config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    return SimpleNamespace(
        instance_id="start",
        parallel_config=SimpleNamespace(**(defaults | parallel)),
        load_config=SimpleNamespace(load_format=load_format),
        use_v2_model_runner=v2,
        model_config=SimpleNamespace(model=str(folder), hf_config=hf_config, seed=0, enforce_eager=True),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=256, user_specified_block_size=True),
        attention_config=SimpleNamespace(indexer_kv_dtype="auto", indexer_sparse_logits=False),
        kernel_config=SimpleNamespace(moe_backend="auto"),
        speculative_config=None,
    )


@pytest.fixture(scope="module")
def layers():
    """Two layers for an audit: one on the device, one mapped."""
    host = HostAllocation("layer 1", TINY.nbytes, Locality(0, (0,), "the only node"))
    yield device_layer(TINY, key=0), W2Layer(1, TINY, Placement.MAPPED, host.tensor(), host)
    host.close()


@pytest.fixture
def fresh_runtime(monkeypatch, tmp_path: Path):
    """A function that builds a runtime over a small checkpoint, as vLLM would with the given options."""
    from moet_w2 import runtime

    write_checkpoint(tmp_path / "model")
    runtime.get.cache_clear()

    def build(rank: int = 0, size: int = 1, **changes):
        made = vllm_config(tmp_path / "model", **changes)
        monkeypatch.setattr(runtime, "get_current_vllm_config", lambda: made)
        monkeypatch.setattr(runtime, "get_tensor_model_parallel_rank", lambda: rank)
        monkeypatch.setattr(runtime, "get_tensor_model_parallel_world_size", lambda: size)
        return runtime.get()

    yield build
    runtime.get.cache_clear()
