"""The gate of vLLM's stock MXFP4 experts on the CPU.

vLLM asks for AMX. The compiled operation needs AVX512-BF16, and the plain one (``ops.experts``) nothing, so wherever
either exists the experts run.

The compiled operation takes this model's clamp (``swiglu_limit``) and ignores it, with or without AMX. The plain one
clamps, as the model is defined. The two agree as long as no gate or up value passes the limit.
"""

from __future__ import annotations

from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsMxfp4
from vllm.platforms import CpuArchEnum, current_platform

from ..errors import UnsupportedError
from . import capability
from .capability import Capability


def attach(found: Capability) -> None:
    """Widen the gate where the processor has no AMX. Idempotent.

    Raises:
        UnsupportedError: the gate is gone from this vLLM.
    """
    if capability.rank(found.isa) >= capability.rank("amx"):
        return
    if not isinstance(vars(CPUExpertsMxfp4).get("_supports_current_device"), staticmethod):
        raise UnsupportedError("the gate of vLLM's MXFP4 experts on the CPU moved; this vLLM is not the pinned one")
    CPUExpertsMxfp4._supports_current_device = staticmethod(_supported)  # type: ignore[method-assign]


def _supported() -> bool:
    return (
        current_platform.is_cpu()
        and current_platform.get_cpu_architecture() == CpuArchEnum.X86
        and capability.has_op("fused_experts_cpu")
    )
