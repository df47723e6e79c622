"""Dense tensors of a synthetic model as a GPU draws them: the same each time, finite, in every dtype."""

import json
from pathlib import Path

import pytest
import torch

from moet_w2 import official
from moet_w2.synthetic_dense import Dense

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[1]
CONFIG = json.loads((ROOT / "demo" / "checkpoint" / "config.json").read_text()) | {
    "n_mtp_layers": 2,
    "dspark_target_layer_ids": [0, 1],
    "dspark_markov_rank": 64,
}
TENSORS = [*official.target(CONFIG, experts=False), *official.draft(CONFIG, experts=False)]


def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize("dtype", sorted({tensor.dtype for tensor in TENSORS}))
def test_tensors_are_the_same_each_time_and_finite(dtype) -> None:
    for tensor in TENSORS:
        if tensor.dtype == dtype:
            first, second = (Dense(CONFIG, 7, gpu()).draw(tensor) for _ in range(2))
            assert first.is_cuda and tuple(first.shape) == tensor.shape, tensor.name
            assert torch.equal(first.view(torch.uint8), second.view(torch.uint8)), tensor.name
            assert first.float().isfinite().all(), tensor.name


def test_the_second_gpu_draws_what_the_first_does() -> None:
    if torch.cuda.device_count() < 2 or len({torch.cuda.get_device_name(index) for index in (0, 1)}) > 1:
        pytest.skip("needs two GPUs of one kind")
    for tensor in TENSORS:
        one, two = (Dense(CONFIG, 7, torch.device("cuda", index)).draw(tensor) for index in (0, 1))
        assert torch.equal(one.view(torch.uint8).cpu(), two.view(torch.uint8).cpu()), tensor.name
