"""Where each W2 layer lives: layer key -> device or mapped host memory, and whether it may be corrected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from .config import W2Config
from .errors import ConfigError, UnsupportedError

_LAYER_INDEX = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class Placement(StrEnum):
    """Which memory holds a layer's planes."""

    DEVICE = "device"
    MAPPED = "mapped"


@dataclass(frozen=True)
class LayerPlan:
    """Placement of every W2 layer of a model.

    Attributes:
        target_layers: number of target layers; their keys are 0 .. target_layers - 1.
        draft_layers: number of speculative draft layers; their keys follow the target's.
        mapped: ascending keys in mapped host memory.
        uncorrected: ascending keys that never take a correction slot.
    """

    target_layers: int
    draft_layers: int
    mapped: tuple[int, ...]
    uncorrected: tuple[int, ...]

    def placement(self, key: int) -> Placement:
        return Placement.MAPPED if key in self.mapped else Placement.DEVICE

    def correctable(self, key: int) -> bool:
        return key not in self.uncorrected


def plan(config: W2Config, target_layers: int, draft_layers: int = 0) -> LayerPlan:
    """Check the configured layer keys against the model.

    Raises:
        ConfigError: a key names a layer that the model does not have.
    """
    known = f"target layers 0..{target_layers - 1}"
    if draft_layers:
        known += f" and draft layers {target_layers}..{target_layers + draft_layers - 1}"
    else:
        known += " and no draft layers"
    for name, keys in (
        ("VLLM_MOE_W2_MAPPED_LAYERS", config.mapped_layers),
        ("VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS", config.delta_exclude_layers),
    ):
        for key in keys:
            if key >= target_layers + draft_layers:
                raise ConfigError(f"{name}: layer key {key} is out of range; this model has {known}")
    return LayerPlan(target_layers, draft_layers, config.mapped_layers, config.delta_exclude_layers)


def layer_key(prefix: str) -> int:
    """The layer key in a vLLM module prefix: ``model.layers.3.ffn.experts`` -> 3.

    Raises:
        UnsupportedError: the prefix names no layer.
    """
    match = _LAYER_INDEX.search(prefix)
    if match is None:
        raise UnsupportedError(f"module {prefix!r} holds routed experts but names no layer; W2 cannot place it")
    return int(match.group(1))
