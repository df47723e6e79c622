"""Random inputs, shapes and tolerances that the tests share."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from moet_w2.cache.key import CacheKey
from moet_w2.cache.publish import publish
from moet_w2.geometry import LayerGeometry
from moet_w2.layer import PROJECTIONS, W2Layer
from moet_w2.placement import Placement

# Every weight shape the checkpoints need: the tiny one's, the real one's, and the real one's TP2 and TP4 shares.
PLANE_SHAPES = [
    (16, 128),
    (256, 256),
    (256, 128),
    (4096, 4096),
    (4096, 2048),
    (2048, 4096),
    (4096, 1024),
    (1024, 4096),
    (4096, 512),
]
TINY = LayerGeometry(experts=4, hidden=256, width=128)


class Worker:
    """Where a runtime finds the methods of vLLM's worker that it hooks into."""

    def determine_available_memory(self) -> int:
        return 0

    def initialize_from_config(self, kv_cache_config: object) -> None:
        return None

    def execute_model(self, scheduler_output: object) -> None:
        return None

    def compile_or_warm_up_model(self) -> None:
        return None


def mxfp4_codes(rows: int, cols: int, seed: int) -> torch.Tensor:
    """int8 ``[rows, cols / 2]``, every nibble alike likely."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, cols // 2), dtype=torch.uint8, generator=generator).view(torch.int8)


def scales(rows: int, cols: int, seed: int) -> torch.Tensor:
    """float8_e8m0fnu ``[rows, cols / 32]`` between 2**-9 and 2**-5."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(118, 123, (rows, cols // 32), dtype=torch.uint8, generator=generator)
    return exponents.view(torch.float8_e8m0fnu)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 ``[rows, cols]`` of uint8 ``[rows, cols / 2]``, low nibble first."""
    packed = packed.view(torch.uint8)
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def expert_tensors(geometry: LayerGeometry, seed: int = 0) -> dict[tuple[int, str, str], torch.Tensor]:
    """Every checkpoint tensor of one layer, by (expert, projection, kind)."""
    tensors = {}
    for expert in range(geometry.experts):
        for index, projection in enumerate(PROJECTIONS):
            rows, cols = geometry.width, geometry.hidden
            if projection == "w2":
                rows, cols = cols, rows
            number = seed * 10_000 + expert * 10 + index
            tensors[expert, projection, "weight"] = mxfp4_codes(rows, cols, number)
            tensors[expert, projection, "scale"] = scales(rows, cols, number)
    return tensors


def device_layer(geometry: LayerGeometry, key: int = 0) -> W2Layer:
    """An empty layer in ordinary memory, poisoned so that an unwritten byte shows."""
    storage = torch.full((geometry.nbytes,), 0xA5, dtype=torch.uint8)
    return W2Layer(key, geometry, Placement.DEVICE, storage)


def filled_layer(geometry: LayerGeometry, seed: int = 0) -> tuple[W2Layer, dict[tuple[int, str, str], torch.Tensor]]:
    """A complete layer and the tensors it was made of."""
    layer, tensors = device_layer(geometry), expert_tensors(geometry, seed)
    for (expert, projection, kind), tensor in tensors.items():
        layer.put(expert, projection, kind, tensor)
    return layer, tensors


def publish_layers(root: Path, key: CacheKey) -> None:
    """Fill a cache with the layers of a key, each from a seed of its own number."""
    for number in range(key.layers):
        layer, _ = filled_layer(key.geometry, seed=number)
        layer.key = number
        publish(root, key, layer)


def write_checkpoint(folder: Path, layers: int = 2, geometry: LayerGeometry = TINY) -> None:
    """A checkpoint folder with the routed experts only, in two shards; enough for the preflight."""
    config = {
        "model_type": "deepseek_v4",
        "num_hidden_layers": layers,
        "n_routed_experts": geometry.experts,
        "hidden_size": geometry.hidden,
        "moe_intermediate_size": geometry.width,
        "expert_dtype": "fp4",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"model": {}}')  # its presence is all that is looked at
    names = {
        f"layers.{layer}.ffn.experts.{expert}.{projection}.{kind}": tensor
        for layer in range(layers)
        for (expert, projection, kind), tensor in expert_tensors(geometry, layer).items()
    }
    write_shards(folder, names)


def write_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors as two shards and their index."""
    from safetensors.torch import save_file  # here, since GPU hosts that run the rest may lack it

    weight_map = {}
    for number in (1, 2):
        shard = f"model-0000{number}-of-00002.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(tensors.items()) if i % 2 == number - 1}
        save_file(part, str(folder / shard))
        weight_map |= dict.fromkeys(part, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
