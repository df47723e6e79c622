"""The kernels over a layer in mapped host memory, against what a plain read of it gives in the same run."""

from __future__ import annotations

from typing import Any

import host_memory
import torch

from moet_w2 import cuda_host, preflight, topology
from moet_w2.host_memory import HostAllocation

from . import speed, timing, workload
from .chain import Chain

TOKENS = (1, 5, 64)
AGAIN_TOKENS, AGAIN_CALLS = 256, 16
"""Tokens of a call that all go to the same experts, so that prefill has four entries of each; and calls, each with
experts of its own. ``bytes_by_time`` is 4 if the reads of every entry cross the bus, 1 if a cache answers the rest."""


def measure(repeats: int = 5) -> dict[str, Any]:
    """Time calls whose planes and scales lie in one layer of mapped host memory."""
    locality = topology.gpu_locality(cuda_host.pci_address(torch.cuda.current_device()))
    preflight.check(workload.LAYER.nbytes, locality)
    allocation = HostAllocation("layer 0", workload.LAYER.nbytes, locality, cuda_host.CudaRegistrar())
    try:
        layer = cuda_host.device_view(allocation.device_address, workload.LAYER.nbytes, torch.device("cuda"))
        workload.fill(layer, torch.Generator(device="cuda").manual_seed(0))
        torch.cuda.synchronize()
        reader = timing.Reader([layer], repeats)
        plain = host_memory.Reader()
        works = {"read_sum": (workload.LAYER.nbytes, plain.read([(layer.data_ptr(), workload.LAYER.nbytes)]))}
        read_sum = host_memory.rates(works, repeats)["read_sum"]
        reader.ceiling = max(reader.ceiling, read_sum)
        records = [_record(workload.chains(tokens, [layer]), layer, reader, repeats) for tokens in TOKENS]
        again = _record(_again(layer), layer, reader, repeats)
        torch.cuda.synchronize()
    finally:
        allocation.close()
    return {
        "layer_bytes": workload.LAYER.nbytes,
        "huge_bytes": allocation.pages.huge_bytes,
        "read_gb_per_s": {"ceiling": reader.ceiling, "read_sum": read_sum, "read_tiles": reader.gb_per_s},
        "tokens": records,
        "read_again": again,
    }


def _again(layer: torch.Tensor) -> list[Chain]:
    chains = workload.chains(AGAIN_TOKENS, [layer], count=AGAIN_CALLS)
    for number, each in enumerate(chains):
        ids = each.call.topk_ids
        ids.copy_(torch.arange(workload.TOP_K, dtype=ids.dtype) + number * workload.TOP_K)
    return chains


def _record(chains: list[Chain], layer: torch.Tensor, reader: timing.Reader, repeats: int) -> dict[str, Any]:
    one = speed.record(chains, [layer], reader, repeats)
    weights = one["weight_bytes"] | {"chain": sum(one["weight_bytes"].values())}
    spent = one["microseconds"]
    # Only weights cross the bus; the time, at the ceiling's rate, is how many bytes may have crossed it.
    one["gb_per_s"] = {name: nbytes / spent[name] / 1e3 for name, nbytes in weights.items()}
    one["share_of_ceiling"] = {name: rate / reader.ceiling for name, rate in one["gb_per_s"].items()}
    one["bytes_by_time"] = {name: spent[name] * reader.ceiling * 1e3 / nbytes for name, nbytes in weights.items()}
    print(
        f"mapped {one['tokens']:3d} tokens, {one['experts']} experts: "
        + ", ".join(
            f"{name} {spent[name]:.1f} us {one['gb_per_s'][name]:.2f} GB/s = {one['share_of_ceiling'][name]:.1%}, "
            f"{one['bytes_by_time'][name]:.3f} times the bytes"
            for name in weights
        ),
        flush=True,
    )
    return one
