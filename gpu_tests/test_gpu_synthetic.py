"""Weights computed on a GPU are those computed on a CPU, in device and in mapped memory, and take seconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime_ext" / "tests"))

from generators import TINY, device_layer

from moet_w2 import cuda_host, synthetic
from moet_w2.geometry import LayerGeometry
from moet_w2.host_memory import HostAllocation
from moet_w2.layer import Shard, W2Layer
from moet_w2.placement import Placement
from moet_w2.topology import Locality

pytestmark = pytest.mark.gpu

ONE = LayerGeometry(experts=1, hidden=4096, width=2048)
REAL = LayerGeometry(experts=256, hidden=4096, width=2048)
LAYER_SECONDS = 1.0
"""46 layers of real size must take well under a minute."""


def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize("geometry", [TINY, ONE], ids=["tiny", "real"])
@pytest.mark.parametrize("mapped", [False, True], ids=["device", "mapped"])
def test_a_layer_is_the_cpus_byte_for_byte(geometry, mapped) -> None:
    expected = device_layer(geometry, key=5)
    synthetic.Experts(7, geometry, torch.device("cpu")).fill(expected)
    host, place = None, Placement.DEVICE
    storage = torch.full((geometry.nbytes,), 0xA5, dtype=torch.uint8, device="cuda")
    if mapped:
        locality = Locality(0, (0,), "the only node")
        host, place = HostAllocation("layer 5", geometry.nbytes, locality, cuda_host.CudaRegistrar()), Placement.MAPPED
        storage = cuda_host.device_view(host.device_address or 0, geometry.nbytes, gpu())
    try:
        layer = W2Layer(5, geometry, place, storage, host)
        synthetic.Experts(7, geometry, gpu()).fill(layer)
        assert torch.equal(layer.storage.cpu(), expected.storage)
    finally:
        if host is not None:
            host.close()


@pytest.mark.parametrize("geometry", [TINY, ONE], ids=["tiny", "real"])
def test_rows_are_the_cpus_byte_for_byte(geometry, tmp_path: Path) -> None:
    rows = []
    for device in (torch.device("cpu"), gpu()):
        experts = synthetic.Experts(7, geometry, device)
        made = synthetic.Rows(tmp_path, synthetic.key(experts, Shard(), 4), experts)
        row = torch.empty(made.row_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        made.read(3, 0, row)
        rows.append(row)
    assert torch.equal(*rows)


def test_a_layer_of_real_size_takes_a_fraction_of_a_second() -> None:
    experts = synthetic.Experts(7, REAL, gpu())
    storage = torch.empty(REAL.nbytes, dtype=torch.uint8, device="cuda")
    experts.fill(W2Layer(0, REAL, Placement.DEVICE, storage))  # loads the kernels
    torch.cuda.synchronize()
    began = time.perf_counter()
    experts.fill(W2Layer(1, REAL, Placement.DEVICE, storage))
    torch.cuda.synchronize()
    assert time.perf_counter() - began < LAYER_SECONDS
