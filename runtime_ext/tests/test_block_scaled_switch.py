"""VLLM_MOE_W2_BLOCK_SCALED: off unless asked for, refused where it cannot run, and what it changes."""

from __future__ import annotations

import logging

import pytest
import torch
from generators import TINY

from moet_w2 import audit, runtime
from moet_w2.errors import UnsupportedError
from moet_w2.kernels import block_scaled, shapes
from moet_w2.layer import Shard

SETTING = "VLLM_MOE_W2_BLOCK_SCALED"


@pytest.fixture
def on_gpu(monkeypatch):
    """Pretend that a GPU of some compute capability is there."""

    def pretend(*capability: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return pretend


def plan(tokens: int) -> shapes.Plan:
    return shapes.plan(256, 4096, 2048, tokens, 6)


@pytest.mark.parametrize("value", [None, "0"])
def test_it_is_off_by_default(monkeypatch, on_gpu, value: str | None) -> None:
    on_gpu(12, 0)
    if value is not None:
        monkeypatch.setenv(SETTING, value)
    assert block_scaled.steps(plan(8), 0) == plan(8).steps


def test_it_changes_the_names_of_two_kernels_and_nothing_else(monkeypatch, on_gpu) -> None:
    on_gpu(12, 0)
    monkeypatch.setenv(SETTING, "1")
    launches = block_scaled.steps(plan(8), 0)
    assert [launch.name for launch in launches] == [
        "moet_routing",
        "moet_decode13_n8_bs",
        "moet_decode2_n8_bs",
        "moet_combine",
    ]
    assert [launch.source for launch in launches] == ["routing", "decode_bs", "decode_bs", "combine"]
    for launch, default in zip(launches, plan(8).steps, strict=True):
        assert (launch.grid, launch.block, launch.shared) == (default.grid, default.block, default.shared)


@pytest.mark.parametrize("tokens", [9, 32, 1000])
def test_more_tokens_take_the_default_kernels(monkeypatch, on_gpu, tokens: int) -> None:
    on_gpu(12, 0)
    monkeypatch.setenv(SETTING, "1")
    assert block_scaled.steps(plan(tokens), 0) == plan(tokens).steps


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)])
def test_another_gpu_refuses(monkeypatch, on_gpu, capability: tuple[int, int]) -> None:
    on_gpu(*capability)
    monkeypatch.setenv(SETTING, "1")
    with pytest.raises(UnsupportedError, match=rf"{SETTING}=1 needs .* 12.x, not compute capability {capability[0]}.0"):
        block_scaled.steps(plan(8), 0)


def test_a_cpu_refuses_before_anything_is_loaded(monkeypatch, fresh_runtime) -> None:
    monkeypatch.setenv(SETTING, "1")
    with pytest.raises(UnsupportedError, match=f"{SETTING}=1 needs a GPU .*, not a CPU; unset it"):
        fresh_runtime()


def test_where_it_serves_the_log_and_the_audit_say_so(monkeypatch, fresh_runtime, on_gpu, tmp_path, caplog) -> None:
    assert "block_scaled" not in fresh_runtime().audit.device
    runtime.get.cache_clear()
    on_gpu(12, 0)
    monkeypatch.setenv(SETTING, "1")
    monkeypatch.setattr(runtime, "_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    with caplog.at_level(logging.WARNING, logger="vllm.moet_w2"):
        made = fresh_runtime()
    assert "unvalidated kernels with e4m3 activations" in caplog.text
    made.device, made.audit.path = torch.device("cpu"), tmp_path / "audit.json"
    made.create_layer(0, TINY, Shard(0, 1))
    made.audit.write()
    assert audit.load(made.audit.path)["device"]["block_scaled"] is True
