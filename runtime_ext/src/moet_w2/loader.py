"""The ``moet`` load format: ready planes from the cache, everything else as vLLM loads it."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from dataclasses import replace

import torch
from safetensors import safe_open
from vllm.config import LoadConfig, ModelConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from . import runtime
from .config import LOAD_FORMAT
from .errors import UnsupportedError

_EXPERT = re.compile(r"^(layers|mtp)\.(\d+)\.ffn\.experts\.")


class MoetLoader(DefaultModelLoader):
    """vLLM's own loader, which leaves out the expert tensors of layers that are complete already.

    They are left out before they are read: their names come from the shards' headers.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        runtime.get().fill_from_cache()
        super().load_weights(model, model_config)

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        _, files, use_safetensors, _ = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        if not use_safetensors:
            raise UnsupportedError(
                f"--load-format {LOAD_FORMAT} reads safetensors checkpoints only: {source.model_or_path}"
            )
        self.counter_before_loading_weights = self.counter_before_loading_weights or time.perf_counter()
        for file in sorted(files):
            with safe_open(file, framework="pt") as shard:
                for name in shard.keys():
                    if not is_covered(name):
                        yield source.prefix + name, shard.get_tensor(name)


def is_covered(name: str) -> bool:
    """Whether a checkpoint tensor belongs to routed experts whose layer is complete in this process."""
    match = _EXPERT.match(name)
    if match is None:
        return False
    here = runtime.get()
    key = int(match.group(2)) + (here.plan.target_layers if match.group(1) == "mtp" else 0)
    layer = here.layers.get(key)
    # A draft layer that is not built yet in this process is not covered by anything, and neither is it wanted.
    return layer is not None and layer.complete
