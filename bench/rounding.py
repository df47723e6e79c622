"""Rounding as other kernels would do it, for machines that have only one kind: activations that are off at random."""

from __future__ import annotations

from typing import Any

RELATIVE = 2.0**-9
"""Largest error of a value: half a step of bfloat16."""
SEED = 7


def perturb(model: Any) -> int:
    """Let outputs of projections and norms be off by up to :data:`RELATIVE`; returns how many such modules there are.

    vLLM's ``apply_model`` sends it to the engine's process, by its name.
    """
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def off(value: Any) -> Any:
        if not torch.is_tensor(value) or not value.is_floating_point():
            return value
        drawn = torch.rand(value.shape, generator=generator).mul_(2).sub_(1)
        return (value.float() * (1 + RELATIVE * drawn)).to(value.dtype)

    def hook(module: Any, given: Any, made: Any) -> Any:
        return tuple(map(off, made)) if isinstance(made, tuple) else off(made)

    found = [one for one in model.modules() if type(one).__name__.endswith(("Linear", "Norm"))]
    for one in found:
        one.register_forward_hook(hook)
    return len(found)
