"""Rows that only fill a draft graph up: none is routed, and the mask's address never changes."""

import inspect
from types import SimpleNamespace

import pytest
import torch

from moet_w2 import moe_method, runtime
from moet_w2.config import W2Config
from moet_w2.draft_padding import DraftPadding
from moet_w2.errors import UnsupportedError
from moet_w2.placement import plan

CPU = torch.device("cpu")


class Speculator:
    num_query_per_req = 4

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def propose(self, input_batch, attn_metadata=None):
        self.seen.append(self.padding.mask.clone())
        return input_batch


@pytest.fixture
def attached():
    class Attached(Speculator):
        pass

    speculator = Attached()
    speculator.padding = DraftPadding(16, CPU)
    speculator.padding.attach(Attached)
    return speculator


def test_the_mask_is_written_before_each_step(attached) -> None:
    address = attached.padding.mask.data_ptr()
    for requests in (4, 3, 1, 1, 4):
        batch = SimpleNamespace(num_reqs=requests)
        assert attached.propose(input_batch=batch) is batch
        assert attached.seen[-1].tolist() == [False] * 4 * requests + [True] * (16 - 4 * requests)
    assert attached.padding.mask.data_ptr() == address == attached.padding.rows(12).data_ptr()


def test_before_the_first_step_every_row_is_real(attached) -> None:
    assert not attached.padding.rows(16).any()
    assert attached.padding.rows(17) is None


def test_another_speculator_is_refused() -> None:
    class Other:
        def propose(self, batch):
            return batch

    with pytest.raises(UnsupportedError, match=r"Other\.propose is not the one of the pinned vLLM"):
        DraftPadding(16, CPU).attach(Other)


def test_vllms_speculator_has_what_is_hooked() -> None:
    from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator
    from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

    assert list(inspect.signature(DSparkSpeculator.propose).parameters)[1] == "input_batch"
    assert "self.num_query_per_req" in inspect.getsource(DSparkSpeculator.__init__)
    # What this module is for: the draft's forward context names no padding.
    assert "is_padding" not in inspect.getsource(DFlashSpeculator._run_model)


@pytest.fixture
def process(monkeypatch):
    made = SimpleNamespace(plan=plan(W2Config(), 2, 3), draft_padding=DraftPadding(16, CPU))
    monkeypatch.setattr(runtime, "get", lambda: made)
    return made


def test_draft_layers_take_the_drafts_mask(process, monkeypatch) -> None:
    """And target layers vLLM's, unless it is told not to keep one up to date."""
    target = torch.ones(8, dtype=torch.bool)
    monkeypatch.setattr(moe_method, "is_forward_context_available", lambda: True)
    monkeypatch.setattr(moe_method, "get_forward_context", lambda: SimpleNamespace(is_padding=target))
    assert moe_method._padding(2, 8).data_ptr() == process.draft_padding.mask.data_ptr()
    assert moe_method._padding(1, 8).data_ptr() == target.data_ptr()
    process.draft_padding = None
    assert moe_method._padding(2, 8) is None
    monkeypatch.setenv("VLLM_MOE_SKIP_PADDING", "0")
    assert moe_method._padding(1, 8) is None
