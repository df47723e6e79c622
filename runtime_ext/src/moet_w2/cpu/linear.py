"""FP8 block linear layers without AMX.

vLLM's compiled kernel asks for AMX, but computes the same on AVX512-BF16, where AMX tiles are only faster: there its
gate is widened. Where it does not exist, weights are dequantised to float32 once, after loading. Float32 and not
BF16: on AVX2, 256 tokens through a 256 x 2048 layer take 7.8 ms in float32, conversions included, and 43 ms in BF16
(one core of a 2-core AVX512 x86 virtual machine limited to AVX2), at four times the memory of FP8 instead of two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear
from vllm.model_executor.kernels.linear import _POSSIBLE_FP8_BLOCK_KERNELS
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import Fp8BlockScaledMMLinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import PlatformEnum, current_platform

from ..errors import UnsupportedError
from . import capability
from .capability import Capability


class DequantisedFp8BlockKernel(Fp8BlockScaledMMLinearKernel):
    """FP8 weights with block scales, held as float32 after loading; activations are never quantised."""

    apply_input_quant = False

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        if not current_platform.is_cpu():
            return False, "requires the CPU platform"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        params = self._get_layer_params(layer)
        group = self.weight_group_shape
        weight = dequantise(params.weight.data, params.block_scale.data, (group.row, group.col))
        replace_parameter(layer, params.WEIGHT, torch.nn.Parameter(weight, requires_grad=False))
        replace_parameter(layer, params.block_scale_attr, torch.nn.Parameter(torch.empty(0), requires_grad=False))

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        wide = None if bias is None else bias.float()
        return linear(x.float(), layer.weight, wide).to(self.config.out_dtype)

    def apply_block_scaled_mm(
        self, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor, Bs: torch.Tensor
    ) -> torch.Tensor:
        raise NotImplementedError("apply_weights computes this kernel's product")


def dequantise(weight: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """FP8 weight [N, K] times its block scales, float32.

    Args:
        weight: [N, K] float8_e4m3fn.
        scale: [ceil(N / block[0]), ceil(K / block[1])]; float8_e8m0fnu, UE8M0 bytes (uint8) or float32.
        block: rows and columns that share a scale.
    """
    rows, columns = weight.shape
    if scale.dtype == torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    wide = scale.float().repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return weight.float() * wide


def attach(found: Capability) -> None:
    """Make vLLM choose the right FP8 block kernel for this processor. Idempotent.

    Raises:
        UnsupportedError: vLLM's list of CPU kernels is not as expected.
    """
    if capability.rank(found.isa) >= capability.rank("amx"):
        return
    kernels = _POSSIBLE_FP8_BLOCK_KERNELS.get(PlatformEnum.CPU, [])
    if CPUFp8BlockScaledMMKernel not in kernels:
        raise UnsupportedError("vLLM's CPU kernels for FP8 block linear layers moved; this vLLM is not the pinned one")
    if found.has_compiled_ops:
        CPUFp8BlockScaledMMKernel.is_supported = classmethod(_compiled_is_supported)  # type: ignore[assignment]
    elif DequantisedFp8BlockKernel not in kernels:
        kernels.insert(0, DequantisedFp8BlockKernel)


def _compiled_is_supported(cls: type, compute_capability: int | None = None) -> tuple[bool, str | None]:
    """The compiled kernel's gate without AMX: the operation exists and the platform is the CPU."""
    if not current_platform.is_cpu():
        return False, "requires the CPU platform"
    if not capability.has_op("fp8_scaled_mm_cpu"):
        return False, "the operation fp8_scaled_mm_cpu is not compiled"
    return True, None
