"""The block-scaled variant of the GEMMs for few tokens: where it may run, and which launches it takes over.

``kernels/src/decode_bs.cu`` says what it is. Nobody has validated it on a GPU that has its instruction, and its
activations are e4m3: so it is off unless ``VLLM_MOE_W2_BLOCK_SCALED`` asks for it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .. import config
from ..errors import UnsupportedError
from .shapes import Launch, Plan

CAPABILITY = 12
"""Major compute capability of the devices whose mma.sync has block scaling (PTX ISA, "mma", target notes)."""
_TAKEN_OVER = {f"moet_decode{number}_n8" for number in (13, 2)}


def enabled(wanted: bool, device: torch.device) -> bool:
    """Whether the variant serves on a device.

    Args:
        wanted: what the setting says.
        device: what computes.

    Raises:
        UnsupportedError: it is wanted and the device has no such instruction.
    """
    if not wanted:
        return False
    has = "a CPU"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major == CAPABILITY:
            return True
        has = f"compute capability {major}.{minor}"
    raise UnsupportedError(
        f"VLLM_MOE_W2_BLOCK_SCALED=1 needs a GPU of compute capability {CAPABILITY}.x, not {has}; unset it"
    )


def steps(plan: Plan, device: int) -> tuple[Launch, ...]:
    """A plan's launches on a CUDA device: with the block-scaled kernels where they are enabled and fit.

    Raises:
        UnsupportedError: they are asked for and the device cannot run them.
    """
    if not enabled(config.load().block_scaled, torch.device("cuda", device)):
        return plan.steps
    return tuple(
        replace(step, source="decode_bs", name=f"{step.name}_bs") if step.name in _TAKEN_OVER else step
        for step in plan.steps
    )
