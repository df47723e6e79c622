"""The FusedMoE method: vLLM's border to a W2 layer. Create, stream in, check, apply."""

from __future__ import annotations

from typing import Any

import torch
from vllm import envs as vllm_envs
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from . import reference, runtime
from .errors import CheckpointError, UnsupportedError
from .geometry import LayerGeometry
from .kernels import experts
from .layer import Shard, W2Layer
from .metrics import reads
from .placement import layer_key

# vLLM's parameter for a checkpoint tensor, by the kind of tensor; w1 and w3 share a parameter there.
_PARAMETERS = {
    "w13_weight": "weight",
    "w13_weight_scale": "scale",
    "w2_weight": "weight",
    "w2_weight_scale": "scale",
}
# Routing tables that vLLM hangs on the same module: they are not weights.
_ROUTER_TENSORS = frozenset({"e_score_correction_bias", "hash_indices_table", "_expert_map", "expert_mask"})


class W2MoEMethod(FusedMoEMethodBase):
    """Routed experts of one layer, served from 2-bit planes."""

    # The planes are in their final place before post-processing: vLLM must not move them to a device and back.
    requires_device_loading = False

    def create_weights(
        self,
        layer: RoutedExperts,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Allocate the planes and register empty parameters whose loaders stream into them.

        Raises:
            MoetError: the layer, the checkpoint or the machine does not allow it.
        """
        key = layer_key(layer.layer_name)
        if num_experts != layer.global_num_experts or layer.apply_router_weight_on_input:
            raise UnsupportedError(
                f"layer {key}: {num_experts} of {layer.global_num_experts} experts on this rank, router weight on "
                f"input {layer.apply_router_weight_on_input}; W2 serves every expert of a layer on every rank"
            )
        geometry = LayerGeometry(num_experts, hidden_size, intermediate_size_per_partition)
        shard = Shard(self.moe.moe_parallel_config.tp_rank, self.moe.moe_parallel_config.tp_size)
        w2 = runtime.get().create_layer(key, geometry, shard)
        layer.w2 = w2
        for name, kind in _PARAMETERS.items():
            # vLLM's loader looks these names up; the bytes live in the planes, so the parameters hold none.
            parameter = torch.nn.Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
            parameter.weight_loader = _loader(w2, kind)
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Check that every tensor has arrived and that nothing of the layer lies on the device twice.

        Raises:
            CheckpointError: tensors are missing.
            MoetError: the device has no kernels for such a layer.
        """
        w2: W2Layer = layer.w2
        if (computed := runtime.get().synthetic) is not None:
            computed.fill(w2)
        if missing := w2.missing():
            raise CheckpointError(
                f"layers.{w2.key}.ffn.{missing[0]}: never arrived ({len(missing)} expert tensors of the layer are "
                "missing); the checkpoint is incomplete"
            )
        runtime.get().loaded(w2, redundant_bytes(layer, w2))
        device = w2.storage.device
        if device.type == "cuda":
            geometry = w2.geometry
            experts.prepare(geometry.experts, geometry.hidden, geometry.width, layer.top_k, device)

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> None:
        return None

    def apply(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """Routed experts over ``x`` ``[T, H]``, a partial sum under tensor parallelism; shared experts run outside.

        On a GPU by :func:`moet_w2.kernels.experts.experts`, on a CPU by :func:`moet_w2.reference.moe`.
        """
        w2: W2Layer = layer.w2
        if not w2.dispatched:
            w2.dispatched = True
            runtime.get().audit.dispatched(w2)
        correction = runtime.get().correction
        if w2.storage.device.type == "cuda":
            views = None if correction is None else correction.device_views(w2.key, x.shape[0])
            rows, slots, counts = views or (None, None, None)
            geometry, padding = w2.geometry, _padding(w2.key, x.shape[0])
            return torch.ops.moet_w2.experts(
                x,
                topk_weights,
                topk_ids,
                w2.storage,
                geometry.experts,
                geometry.width,
                layer.swiglu_limit,
                rows,
                slots,
                counts,
                padding,
                w2.reads,
            )
        resident = None if correction is None else correction.resident(w2.key, topk_ids)
        if w2.reads is not None:
            reads.count(w2.reads, topk_ids, resident and resident.slots)
        return reference.moe(w2, x, topk_weights, topk_ids, layer.swiglu_limit, resident)


def redundant_bytes(layer: torch.nn.Module, w2: W2Layer) -> int:
    """Bytes that the module holds beside the planes and the router's tables, over its tensors of every kind."""
    first, last = w2.storage.data_ptr(), w2.storage.data_ptr() + w2.storage.nbytes
    held = dict(layer.named_parameters()) | dict(layer.named_buffers())
    held |= {name: value for name, value in vars(layer).items() if isinstance(value, torch.Tensor)}
    storages = {tensor.untyped_storage() for name, tensor in held.items() if name not in _ROUTER_TENSORS}
    seen = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(nbytes for address, nbytes in seen.items() if not first <= address < last)


def _padding(key: int, tokens: int) -> torch.Tensor | None:
    """bool ``[tokens]``: the rows that only fill a batch up, where that is known. A fixed address in captured graphs.

    Not every router of vLLM marks such rows with -1: their ids would cost reads and bend the counts.

    Args:
        key: the layer; vLLM keeps a mask for target layers alone (:mod:`moet_w2.draft_padding`).
        tokens: rows of the call.
    """
    here = runtime.get()
    if key >= here.plan.target_layers:
        return None if here.draft_padding is None else here.draft_padding.rows(tokens)
    # Without this setting vLLM marks rows during capture and never again.
    if not vllm_envs.VLLM_MOE_SKIP_PADDING:
        return None
    mask = get_forward_context().is_padding if is_forward_context_available() else None
    return None if mask is None or mask.shape[0] < tokens else mask[:tokens]


def _loader(w2: W2Layer, kind: str) -> Any:
    def load(
        param: torch.nn.Parameter,
        loaded_weight: torch.Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        w2.put(expert_id, shard_id, kind, loaded_weight)
        return True if return_success else None

    return load
