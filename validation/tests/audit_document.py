"""An audit as a server of the demo recipe writes it."""

from __future__ import annotations

from typing import Any

from moet_w2 import codebook
from moet_w2.recipe import Recipe

PAGE = 4096


def make(recipe: Recipe) -> dict[str, Any]:
    """A document that holds against its recipe."""
    layers = [_layer(key, recipe) for key in range(recipe.expect.w2_layers)]
    mapped = list(recipe.w2.mapped_layers)
    return {
        "schema": "moet.audit",
        "schema_version": 1,
        "written_unix": 0.0,
        "pid": 1,
        "state": "ready",
        "quantizer": {"abi": codebook.QUANTIZER_ABI, "zero_mode": codebook.ZERO_MODE},
        "device": {"type": "cpu", "name": "test", "numa": None},
        "target_layers": recipe.expect.w2_layers,
        "draft_layers": 0,
        "configured_mapped_layers": mapped,
        "allocated_mapped_layers": mapped,
        "uncorrected_layers": list(recipe.w2.exclude_layers),
        "mapped_bytes": recipe.expect.mapped_bytes,
        "w2_bytes": sum(layer["bytes"] for layer in layers),
        "redundant_gpu_w2_bytes": 0,
        "layers": layers,
    }


def _layer(key: int, recipe: Recipe) -> dict[str, Any]:
    geometry = recipe.model.geometry
    size = geometry.layer.nbytes
    mapped = key in recipe.w2.mapped_layers
    host = {
        "address": PAGE,
        "locked_bytes": size,
        "page_bytes": PAGE,
        "pages_by_node": {"0": size // PAGE},
        "pages_note": "",
    }
    return {
        "key": key,
        "placement": "mapped" if mapped else "device",
        "state": "ready",
        "correctable": key not in recipe.w2.exclude_layers,
        "bytes": size,
        "geometry": geometry.model_dump(),
        "parts": {
            name: {"offset": part.offset, "bytes": part.nbytes} for name, part in geometry.layer.parts.items()
        },
        "address": PAGE,
        "redundant_bytes": 0,
        "first_dispatch_unix": 1.0,
        "host": host if mapped else None,
    }
