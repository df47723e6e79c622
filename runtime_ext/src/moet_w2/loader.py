"""The ``moet`` load format: ready planes from the cache, everything else as vLLM loads it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import LoadConfig, ModelConfig, VllmConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.utils.import_utils import resolve_obj_by_qualname

from . import runtime
from .cache import phases
from .cache.progress import Progress
from .config import LOAD_FORMAT
from .errors import UnsupportedError

_EXPERT = re.compile(r"^(layers|mtp)\.(\d+)\.ffn\.experts\.")
_DRAFT = "mtp."


class MoetLoader(DefaultModelLoader):
    """vLLM's own loader, which leaves out the expert tensors of layers that are complete already.

    They are left out before they are read: names and sizes come from the shards' headers. Layers that are built on the
    way are handed to the cache as soon as they are complete, so that a start that is cut short has not been in vain.
    """

    nbytes_read = 0
    """Bytes of the checkpoint tensors that the last model was handed."""
    drafting = False
    """Whether the model that is loaded is the DSpark draft; its tensors lie in the target's checkpoint."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(replace(load_config, load_format="auto"))

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "") -> torch.nn.Module:
        worker = resolve_obj_by_qualname(vllm_config.parallel_config.worker_cls)
        phases.attach(worker, phases.of_process(), _settle, _tell)
        self.drafting = model_config is not vllm_config.model_config
        return super().load_model(vllm_config, model_config, prefix)

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        runtime.get().fill_from_cache()
        started = phases.of_process()
        rest = "draft rest" if self.drafting else "target rest"
        self.nbytes_read = 0
        with started.measure(rest):
            super().load_weights(model, model_config)
        started.facts.setdefault("checkpoint_bytes_read", {})[rest] = self.nbytes_read

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
        wanted = {
            file: {name: size for name, size in sizes(file).items() if is_wanted(name, self.drafting)}
            for file in sorted(files)
        }
        building = {layer_of(name) for names in wanted.values() for name in names} - {None}
        total = sum(sum(names.values()) for names in wanted.values())
        last = None
        with Progress("checkpoint", len(building), total, sys.stderr) as progress:
            for file, names in wanted.items():
                with safe_open(file, framework="pt") as shard:
                    for name, size in names.items():
                        if layer_of(name) != last:
                            last = layer_of(name)
                            _keep_what_is_complete()
                        yield source.prefix + name, shard.get_tensor(name)
                        self.nbytes_read += size
                        progress.add(size)
        _keep_what_is_complete()


def sizes(file: str) -> dict[str, int]:
    """Bytes of each tensor of a safetensors file in the order in which they lie there, by the header alone."""
    with open(file, "rb") as shard:
        header = json.loads(shard.read(int.from_bytes(shard.read(8), "little")))
    header.pop("__metadata__", None)
    offsets = sorted((entry["data_offsets"], name) for name, entry in header.items())
    return {name: end - start for (start, end), name in offsets}


def layer_of(name: str) -> int | None:
    """Key of the layer that a checkpoint tensor of routed experts belongs to; None for every other tensor."""
    match = _EXPERT.match(name)
    if match is None:
        return None
    return int(match.group(2)) + (runtime.get().plan.target_layers if match.group(1) == "mtp" else 0)


def is_wanted(name: str, drafting: bool = False) -> bool:
    """Whether a checkpoint tensor is to be read at all.

    The target takes no draft tensor (``mtp.*``), and the draft takes nothing else: what both share it takes from the
    target. Tensors of routed experts are not read where their layer is complete, nor where this process has W2 layers
    but not this one.
    """
    if name.startswith(_DRAFT) != drafting:
        return False
    key = layer_of(name)
    layers = runtime.get().layers
    if key is None or not layers:
        return True
    return key in layers and not layers[key].complete


def _keep_what_is_complete() -> None:
    here = runtime.get()
    if here.cache is not None:
        for layer in here.layers.values():
            if layer.complete:
                here.cache.built(layer)


def _settle() -> None:
    cache = runtime.get().cache
    if cache is not None:
        cache.wait()


def _tell() -> None:
    here, started = runtime.get(), phases.of_process()
    started.facts |= _layers(here)
    for phase, seconds in ({} if here.cache is None else here.cache.seconds).items():
        started.add(phase, seconds)
    started.tell(here.audit.path)


def _layers(here: runtime.W2Runtime) -> dict[str, Any]:
    """How many layers came from where, and why."""
    facts: dict[str, Any] = {
        "layers": len(here.layers),
        "layer_bytes": sum(x.geometry.nbytes for x in here.layers.values()),
    }
    if here.cache is not None:
        facts["from_cache"] = sorted(here.cache.hits)
        facts["built"] = {str(key): str(miss) for key, miss in sorted(here.cache.misses.items())}
    return facts
