"""The null block after capture: zeros in every KV cache tensor, and nothing else touched."""

import inspect
from types import SimpleNamespace

import pytest
import torch

from moet_w2 import null_block
from moet_w2.errors import UnsupportedError

BLOCKS = 4


class Zeroer:
    """As vLLM's: knows one packed page that no layer's view reaches."""

    def __init__(self) -> None:
        self.page = torch.full((BLOCKS, 8), float("nan"))

    def zero_block_ids(self, blocks: list[int]) -> None:
        self.page[blocks] = 0


def worker(zeroer=None) -> type:
    class Worker:
        def __init__(self) -> None:
            nan = float("nan")
            raw = torch.full((BLOCKS, 2, 6), nan)  # two layers packed into one allocation
            self.caches = [raw[:, 0], raw[:, 1], torch.full((BLOCKS * 2, 3), nan), torch.full((BLOCKS, 5), nan)]
            layers = {
                "packed.0": SimpleNamespace(kv_cache=self.caches[0]),
                "packed.1": SimpleNamespace(kv_cache=self.caches[1]),
                "two kernel blocks in each": SimpleNamespace(kv_cache=self.caches[2]),
                "several": SimpleNamespace(kv_cache=[self.caches[3], torch.empty(0)]),
                "no cache": SimpleNamespace(),
            }
            context = SimpleNamespace(static_forward_context=layers)
            self.vllm_config = SimpleNamespace(compilation_config=context)
            self.cache_config = SimpleNamespace(num_gpu_blocks=BLOCKS)
            self.model_runner = SimpleNamespace(kv_block_zeroer=zeroer)

        def compile_or_warm_up_model(self) -> str:
            return "compiled"

    return Worker


@pytest.mark.parametrize("zeroer", [None, Zeroer()])
def test_no_nan_is_left_where_block_tables_point_for_no_block(zeroer) -> None:
    made = worker(zeroer)
    null_block.attach(made)
    one = made()
    assert one.compile_or_warm_up_model() == "compiled"
    for cache, first in zip(one.caches, (1, 1, 2, 1), strict=True):
        assert not cache[:first].any()
        assert cache[first:].isnan().all()
    if zeroer is not None:
        assert not zeroer.page[0].any() and zeroer.page[1:].isnan().all()


def test_caches_made_in_inference_mode_are_cleared_too() -> None:
    made = worker()
    null_block.attach(made)
    with torch.inference_mode():
        one = made()
    assert one.caches[0].is_inference()
    one.compile_or_warm_up_model()
    assert not one.caches[0][:1].any()


def test_a_view_that_spans_other_layers_pages_loses_its_first_block_alone() -> None:
    one = worker()()
    odd = torch.ones(BLOCKS * 3 - 2, 4)
    one.vllm_config.compilation_config.static_forward_context["spanning"] = SimpleNamespace(kv_cache=odd)
    null_block.clear(one)
    assert not odd[0].any() and odd[1:].all()


def test_another_worker_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="has no compile_or_warm_up_model"):
        null_block.attach(type("Worker", (), {}))


def test_vllm_calls_the_null_block_zero() -> None:
    from vllm.v1.core.block_pool import BlockPool

    source = inspect.getsource(BlockPool.__init__)
    assert "null_block" in source and "popleft" in source  # the first free block, whose number is 0
