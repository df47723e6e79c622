"""A small valid recipe for tests, and ways to break it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

LAYER_BYTES = 1_769_472
"""One layer of 64 experts, hidden 256, width 128: 64 * (16384 + 2048 + 8192 + 1024)."""

VALID: dict[str, Any] = {
    "name": "tiny",
    "description": "a recipe for tests",
    "hardware": "none",
    "duration": "none",
    "model": {
        "path": "models/tiny",
        "served_name": "tiny-model",
        "geometry": {"experts": 64, "hidden": 256, "width": 128},
    },
    "w2": {"mapped_layers": [2, 3], "correction": {"gb": 0, "exclude_layers": [3]}},
    "engine": {
        "max-model-len": 512,
        "enable-prefix-caching": True,
        "async-scheduling": False,
        "speculative-config": {"method": "dspark", "num_speculative_tokens": 4},
        "cudagraph-capture-sizes": [1, 2],
    },
    "environment": {"SOME_THREADS": 2, "SOME_WORDS": "a b"},
    "expect": {
        "max_model_len": 512,
        "w2_layers": 4,
        "mapped_layers": [2, 3],
        "mapped_bytes": 2 * LAYER_BYTES,
    },
}

MISSING = object()


def broken(place: str, value: Any) -> dict[str, Any]:
    """The valid recipe with ``value`` at a dotted place, or without that key when value is MISSING."""
    data = copy.deepcopy(VALID)
    *parents, key = place.split("/")
    section = data
    for parent in parents:
        section = section[parent]
    if value is MISSING:
        del section[key]
    else:
        section[key] = value
    return data


def write(root: Path, data: object = VALID, name: str = "tiny.yaml") -> Path:
    """Write a recipe where a repository rooted at ``root`` keeps it."""
    path = root / "bench" / "recipes" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False))
    return path
