"""An audit as a server of a recipe writes it: recorded by the extension's own code over real allocations."""

from __future__ import annotations

import torch

from moet_w2.audit import Audit
from moet_w2.config import W2Config
from moet_w2.host_memory import HostAllocation
from moet_w2.layer import W2Layer
from moet_w2.placement import Placement, plan
from moet_w2.recipe import Recipe
from moet_w2.topology import Locality

DEVICE = {"type": "cpu", "name": "test", "pci": None, "numa": {"node": 0, "nodes": [0], "reason": "the only node"}}


def make(recipe: Recipe) -> dict:
    """A document that holds against its recipe."""
    config = W2Config(True, recipe.w2.mapped_layers, recipe.w2.exclude_layers)
    record = Audit(None, plan(config, recipe.expect.w2_layers), DEVICE)
    geometry = recipe.model.geometry.layer
    allocations = {
        key: HostAllocation(f"layer {key}", geometry.nbytes, Locality(0, (0,), "the only node"))
        for key in recipe.w2.mapped_layers
    }
    layers = [
        W2Layer(key, geometry, Placement.MAPPED, allocations[key].tensor(), allocations[key])
        if key in allocations
        else W2Layer(key, geometry, Placement.DEVICE, torch.zeros(geometry.nbytes, dtype=torch.uint8), None)
        for key in range(recipe.expect.w2_layers)
    ]
    for layer in layers:
        record.created(layer, 0)
    for layer in layers:
        record.loaded(layer, redundant_bytes=0)
    engine = recipe.engine
    record.started(
        {
            "profile": recipe.name,
            "max_model_len": recipe.expect.max_model_len,
            "kv_cache_tokens": recipe.expect.max_model_len,
            "kv_cache_dtype": "auto",
            "block_size": engine["block-size"],
            "max_num_seqs": engine["max-num-seqs"],
            "max_num_batched_tokens": engine["max-num-batched-tokens"],
            "prefix_caching": engine["enable-prefix-caching"],
            "gpu_memory_utilization": 0.9,
            "speculative": None,
            "graph_mode": "NONE",
            "attention_backends": ["TEST"],
            "expert_kernels": "torch reference",
            "seconds": {},
            "seconds_since_process_start": 1.0,
        }
    )
    document = record.document()
    del layers
    for allocation in allocations.values():
        allocation.close()
    return document
