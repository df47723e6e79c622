"""What vLLM lacks to serve this model on any x86-64 CPU.

    capability.py    what the processor can do; the only place that asks
    triton_backend/  the entry by which Triton, and so vLLM, finds a CPU backend: Triton's interpreter
    platform.py      the CPU platform's decisions, narrowed to what they are about
    kernels/         plain functions in place of the Triton kernels of every step
    ops/             plain torch operations where vLLM's C extension has none for this processor
    waiting.py       how processes wait for each other without a core of their own
    linear.py        FP8 block linear layers, compiled or dequantised
    moe.py           the gate of the stock MXFP4 experts

``attach`` is cheap and runs in every vLLM process. What needs vLLM's model code is attached by the worker alone, at
the point where vLLM lets its platform replace kernels.
"""

from __future__ import annotations


def attach(isa: str | None = None) -> None:
    """Attach everything to vLLM, if its platform is the CPU; otherwise do nothing. Idempotent.

    Args:
        isa: highest instruction set to use (``capability.ISAS``), or None for what the processor has.

    Raises:
        UnsupportedError: the processor is too old, vLLM loaded an extension for another instruction set than ``isa``
            asks for, or an attachment finds something else than the pinned vLLM.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.device_communicators import shm_broadcast

    from . import capability, platform, waiting

    platform.attach(type(current_platform), capability.detect(isa))
    waiting.attach(shm_broadcast)
