"""W2Runtime: what one worker process knows of its W2 layers."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.platforms import current_platform

from . import checkpoint, config, placement, topology
from .audit import Audit
from .errors import UnsupportedError
from .geometry import LayerGeometry
from .host_memory import HostAllocation
from .layer import Shard, W2Layer
from .placement import LayerPlan, Placement

DSPARK_LAYERS = 3
"""Draft layers that vLLM builds for DSpark where config.json does not give ``n_mtp_layers``."""


class W2Runtime:
    """Configuration, plan, audit and layers of this process."""

    def __init__(self, settings: config.W2Config, plan: LayerPlan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        # Only a plan that maps layers needs a node: on several nodes an unknown one is an error.
        self._locality = topology.cpu_locality(settings.mapped_numa_node) if plan.mapped else None
        self.audit = Audit(settings.audit_path, plan, _describe_device(device, self._locality))
        self.layers: dict[int, W2Layer] = {}

    def create_layer(self, key: int, geometry: LayerGeometry, shard: Shard) -> W2Layer:
        """Give a layer its memory, once.

        Raises:
            UnsupportedError: the layer exists already, or mapped placement is asked for on CUDA.
            HostMemoryError: mapped memory could not be had.
        """
        if key in self.layers:
            raise UnsupportedError(f"layer {key} is built twice in one process; W2 keeps one copy of a layer")
        where, host = self.plan.placement(key), None
        if where is Placement.MAPPED and self._locality is not None:
            host = self._map(key, geometry.nbytes, self._locality)
            storage = host.tensor()
        else:
            storage = torch.empty(geometry.nbytes, dtype=torch.uint8, device=self.device)
        layer = W2Layer(key, geometry, where, storage, host, shard)
        self.layers[key] = layer
        self.audit.created(layer)
        return layer

    def _map(self, key: int, nbytes: int, locality: topology.Locality) -> HostAllocation:
        if self.device.type != "cpu":
            raise UnsupportedError(
                f"layer {key}: mapped host memory is not yet supported on {self.device.type}; "
                "unset VLLM_MOE_W2_MAPPED_LAYERS"
            )
        return HostAllocation(f"layer {key}", nbytes, locality)


@cache
def get() -> W2Runtime:
    """The process's runtime, built from the environment and the vLLM configuration that is being set up.

    Raises:
        MoetError: the settings, the checkpoint or the combination with other vLLM options is refused.
    """
    vllm_config = get_current_vllm_config()
    _refuse_unsupported(vllm_config)
    model = vllm_config.model_config
    if vllm_config.load_config.load_format != "dummy":
        checkpoint.inspect(model.model)
    settings = config.load()
    target, draft = model.hf_config.num_hidden_layers, _draft_layers(vllm_config)
    plan = placement.plan(settings, target, draft)
    return W2Runtime(settings, plan, torch.device(current_platform.device_type))


def _draft_layers(vllm_config: VllmConfig) -> int:
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "dspark":
        return 0
    return getattr(vllm_config.model_config.hf_config, "n_mtp_layers", None) or DSPARK_LAYERS


def _refuse_unsupported(vllm_config: VllmConfig) -> None:
    parallel = vllm_config.parallel_config
    refusals = {
        "expert parallelism (--enable-expert-parallel)": parallel.enable_expert_parallel,
        "expert load balancing (--enable-eplb)": parallel.enable_eplb,
        "pipeline parallelism (--pipeline-parallel-size)": parallel.pipeline_parallel_size > 1,
    }
    for what, asked in refusals.items():
        if asked:
            raise UnsupportedError(f"--quantization moet_w2 does not support {what}; serve without it")


def _describe_device(device: torch.device, locality: topology.Locality | None) -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    numa = None
    if locality is not None:
        numa = {"node": locality.node, "nodes": list(locality.nodes), "reason": locality.reason}
    return {"type": device.type, "name": name, "numa": numa}
