"""A load of ready planes leaves a device's layers right and no memory pinned."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from generators import TINY, device_layer, filled_layer, publish_layers

from moet_w2.cache import load, staging
from moet_w2.cache.key import CacheKey
from moet_w2.layer import Shard, W2Layer

pytestmark = pytest.mark.gpu
KEY = CacheKey("checkpoint-a", TINY, Shard(), 3)


def pinned_bytes() -> int:
    """Bytes that torch's allocator keeps pinned, in use or not."""
    return torch.cuda.host_memory_stats()["allocated_bytes.current"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    publish_layers(tmp_path, KEY)
    return tmp_path


def load_all(root: Path) -> list[W2Layer]:
    layers = [device_layer(TINY, number) for number in range(KEY.layers)]
    for layer in layers:
        layer.storage = layer.storage.cuda()
    assert [result.miss for result in load.load(root, KEY, layers)] == [None] * KEY.layers
    return layers


def test_a_load_gives_its_pinned_memory_back(root: Path) -> None:
    torch.cuda.init()
    gc.collect()  # pinned tensors that an earlier test left in cycles
    torch.accelerator.empty_host_cache()
    before = pinned_bytes()
    layers = load_all(root)
    assert pinned_bytes() == before
    for number, layer in enumerate(layers):
        assert torch.equal(layer.storage.cpu(), filled_layer(TINY, seed=number)[0].storage)


def test_a_load_that_does_not_give_it_back_is_caught(root: Path, monkeypatch) -> None:
    torch.cuda.init()
    gc.collect()  # pinned tensors that an earlier test left in cycles
    torch.accelerator.empty_host_cache()
    before = pinned_bytes()
    monkeypatch.setattr(staging, "give_back", lambda device: None)
    load_all(root)
    monkeypatch.undo()
    assert pinned_bytes() > before
    staging.give_back(torch.device("cuda"))
    assert pinned_bytes() == before
