"""The tier attached to vLLM's classes: sized after the KV cache, started after warm-up, told of real steps only."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from correction_support import CPU, KEY, LAYERS, full_pack
from generators import TINY

from moet_w2.config import W2Config
from moet_w2.correction import build
from moet_w2.placement import plan


class Worker:
    """A stand-in for vLLM's worker class, found by its name."""

    cache_config = SimpleNamespace(gpu_memory_utilization=0.5, kv_cache_memory_bytes=0)

    def initialize_from_config(self, kv_cache_config: object) -> None:
        return None

    def compile_or_warm_up_model(self) -> str:
        return "warm"


@pytest.fixture
def runner(monkeypatch):
    """vLLM's model runner class with an execute_model that does nothing, and Worker as it is above."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def execute_model(self, scheduler_output, dummy_run=False):
        return scheduler_output

    monkeypatch.setattr(GPUModelRunner, "execute_model", execute_model)
    for name in ("initialize_from_config", "compile_or_warm_up_model"):
        monkeypatch.setattr(Worker, name, vars(Worker)[name])
    return object.__new__(GPUModelRunner)


def built(root: Path, **settings):
    vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=f"{__name__}.Worker"))
    given = W2Config(store_dir=root, **settings)
    return build.build(given, plan(given, LAYERS), KEY, CPU, vllm_config)


def test_no_tier_where_the_settings_want_none(tmp_path: Path, runner) -> None:
    assert built(tmp_path) is None
    assert built(tmp_path, trace=tmp_path / "t") is None


def test_a_size_in_gib_is_that_many_whole_rows(tmp_path: Path, runner) -> None:
    made = built(tmp_path, delta_gib=2.9 * KEY.geometry.correction_row_bytes / 2**30)
    assert made.pool.slots == 2 and not made.sized_late
    Worker().initialize_from_config(None)
    assert made.pool.slots == 2
    made.close()


def test_every_moment_of_vllm_has_its_part(tmp_path: Path, runner) -> None:
    full_pack(tmp_path).close()
    made, worker = built(tmp_path, delta_auto=True, trace=tmp_path / "trace"), Worker()
    sized = []
    made.on_sized = lambda: sized.append(made.facts()["slots"])
    assert runner.execute_model("warm-up request") == "warm-up request"
    assert made.manager is None and made.pool.slots == 0
    worker.initialize_from_config(kv_cache_config=None)
    assert sized == [LAYERS * TINY.experts] == [made.pool.slots]
    assert worker.compile_or_warm_up_model() == "warm" and made.manager is not None
    runner.execute_model("profiling", dummy_run=True)
    assert made.pool.step == 0
    made.resident(0, torch.tensor([[1, 1]]))
    for _ in range(9):
        runner.execute_model("step")
    assert made.pool.step == 9
    made.close()
    assert (tmp_path / "trace").is_file()
