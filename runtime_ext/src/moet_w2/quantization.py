"""The quantization config behind ``--quantization moet_w2``: ours for routed experts, vLLM's for the rest."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.quantization import get_quantization_config

from . import checkpoint, config
from .errors import UnsupportedError
from .moe_method import W2MoEMethod

NAME = "moet_w2"
STOCK = "deepseek_v4_fp8"

# vLLM picks this class by platform. A module-level subclass, because configs are pickled to worker processes.
_Stock: Any = get_quantization_config(STOCK)


class MoetW2Config(_Stock):
    """DeepSeek-V4's FP8 configuration, with routed experts as W2 planes."""

    @classmethod
    def get_name(cls) -> str:
        return NAME

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Keep the user's choice of W2, or send it to the stock method where ``VLLM_MOE_W2=0``.

        Raises:
            CheckpointError: W2 was chosen for a checkpoint whose experts are not MXFP4.
            UnsupportedError: W2 was chosen for another model.
        """
        if user_quant != NAME:
            return None
        if not config.load().enabled:
            return STOCK
        kind = getattr(hf_config, "model_type", None)
        # A DSpark draft calls itself deepseek_mtp at this point of vLLM's setup.
        if kind not in ("deepseek_v4", "deepseek_mtp"):
            raise UnsupportedError(f"--quantization {NAME} serves deepseek_v4 checkpoints only, not {kind!r}")
        checkpoint.check_experts_are_mxfp4("checkpoint", getattr(hf_config, "expert_dtype", "fp4"), hf_quant_cfg)
        return NAME

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            hf_config = get_current_vllm_config().model_config.hf_config
            checkpoint.check_experts_are_mxfp4(prefix, self.expert_dtype, hf_config.quantization_config)
            return W2MoEMethod(layer.moe_config)
        return super().get_quant_method(layer, prefix)
