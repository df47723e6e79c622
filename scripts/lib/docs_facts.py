"""What the documents' numbers are made from: result files, recipes, pins, and facts that code holds."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable
from functools import cache
from typing import Any

import venvs
from docs_source import ROOT

from moet_w2 import recipe
from moet_w2.doctor.software import DEEP_GEMM_NVCC
from moet_w2.geometry import TILE_COLS, TILE_ROWS
from moet_w2.planner import reported
from moet_w2.recipe import Recipe

RESULTS = "bench/results"
_LANES = 32  # of a warp


@cache
def content(source: str) -> Any:
    """What a source holds: JSON of a result, the pins as a dict, a :class:`Recipe`, or a module's facts."""
    if source.endswith(".json"):
        return json.loads((ROOT / (source if "/" in source else f"{RESULTS}/{source}")).read_text(encoding="utf-8"))
    if source.endswith(".txt"):
        return (ROOT / source).read_text(encoding="utf-8")
    if source == "pins.toml":
        return tomllib.loads((ROOT / source).read_text(encoding="utf-8"))
    if source.endswith(".yaml"):
        return recipe.load(ROOT / "bench" / "recipes" / source)
    return CODE[source]()


def _profiles() -> dict[str, Recipe]:
    return {name: content(f"pro6000-{name}.yaml") for name in ("512k", "300k")}


def _sizes() -> dict[str, Any]:
    profile = content("pro6000-512k.yaml")
    layer, correction = profile.model.geometry.layer, profile.w2.correction
    layers = profile.expect.w2_layers
    targets = layers - len(correction.exclude_layers)
    return {
        "layer": layer,
        "layers": layers,
        "targets": targets,
        "planes": layers * layer.nbytes,
        "store": targets * layer.experts * layer.correction_row_bytes,
        "slots": correction.nbytes // layer.correction_row_bytes,
    }


def _constants() -> dict[str, Any]:
    return {
        "nvcc": ".".join(map(str, DEEP_GEMM_NVCC)),
        "disk": {variant: size >> 30 for variant, size in venvs.DISK_BYTES.items()},
        "prefill": constant("correction/tier.py", "PREFILL_TOKENS"),
        "decode": min(constant("kernels/shapes.py", "DECODE_CHUNKS")),
        "shared": constant("kernels/shapes.py", "PREFILL_CHUNK"),
        "reserve": constant("correction/sizing.py", "RESERVE") >> 30,
        "lane": TILE_ROWS * TILE_COLS // 4 // _LANES,
    }


def constant(file: str, name: str) -> Any:
    """A literal of a module of the extension, which is not imported: some of them import torch."""
    tree = ast.parse((ROOT / "runtime_ext/src/moet_w2" / file).read_text(encoding="utf-8"))
    return next(
        literal(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [target.id for target in node.targets] == [name]
    )


def literal(node: ast.expr) -> Any:
    """A literal, or one shifted by another: `1 << 30`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        return literal(node.left) << literal(node.right)
    return ast.literal_eval(node)


CODE: dict[str, Callable[[], Any]] = {
    "profiles": _profiles,
    "sizes": _sizes,
    "constants": _constants,
    "reported": lambda: {profile.name: profile for profile in reported.PROFILES},
    "packages": lambda: None,
    "held": lambda: {
        "300k of the table": content("serving_h200-300k.json"),
        **{name: content(f"{RESULTS}/held/serving_h200-{name}.json") for name in ("300k", "512k")},
    },
    "again": lambda: {name: content(f"{RESULTS}/held/serving_h200-{name}_again.json") for name in ("resident", "300k")},
    "servers": lambda: {name: content(f"serving_h200-{name}.json") for name in ("resident", "300k", "512k")},
}
"""Sources that are code, or several files: sizes by geometry and recipes, limits and reported figures by the modules
that hold them, the servers that were measured."""
