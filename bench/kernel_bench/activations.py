"""What activations in e4m3, one scale for each 32 columns, would cost in accuracy beside bfloat16.

Both against float64 on the same data: one expert's two GEMMs of the real geometry, weights from the 2-bit codebook.
The kernels take activations as one or the other in both GEMMs; products are exact in either and sums are float32, so
what differs is the rounding of the operands, which is what is emulated here.

The choice is bfloat16 (bench/results/kernels_activations.json): e4m3 makes 13 to 30 times its error, far above the
3e-3 that the kernels are held to, whatever the scale. Nor would it be faster everywhere: sm_90a and sm_100a have no
e4m3 form of mma.sync; the compiler unpacks both operands to float16 and issues two float16 instructions in its place
(:mod:`kernel_bench.sass`). Only sm_89 and sm_120a have one, and at few tokens memory is the limit on them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from moet_w2 import codebook
from moet_w2.geometry import SCALE_BLOCK

_E4M3_MAX = 448.0  # OCP 8-bit floating point, section 5.2
TOKENS, HIDDEN, WIDTH, LIMIT = 64, 4096, 2048, 10.0
DATA: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "normal": lambda made: torch.randn(TOKENS, HIDDEN, generator=made),
    # A few columns far above the rest, as hidden states of language models have them.
    "outliers": lambda made: (
        torch.randn(TOKENS, HIDDEN, generator=made) * torch.where(torch.rand(HIDDEN, generator=made) < 0.005, 40.0, 1.0)
    ),
}


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bfloat16, as float64."""
    return x.bfloat16().double()


def e4m3(x: torch.Tensor, exact_scale: bool) -> torch.Tensor:
    """Rounded to e4m3 in blocks of 32 columns, as float64.

    Args:
        x: float64 ``[..., K]``.
        exact_scale: a float32 scale for each block that puts its largest value on 448; else the power of two above
            it, as UE8M0 has it.
    """
    blocks = x.unflatten(-1, (-1, SCALE_BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / _E4M3_MAX
    scale = scale.float().double() if exact_scale else torch.exp2(torch.log2(scale).ceil())
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).flatten(-2)


def measure() -> dict[str, Any]:
    """Relative errors of each choice, on each kind of data."""
    found = {name: _errors(draw) for name, draw in DATA.items()}
    for name, errors in found.items():
        print(f"{name}: " + ", ".join(f"{choice} {error:.2e}" for choice, error in errors.items()))
    return {
        "tokens": TOKENS,
        "hidden": HIDDEN,
        "width": WIDTH,
        "values": TOKENS * (HIDDEN + WIDTH),
        "relative_error": found,
    }


def _errors(draw: Callable[[torch.Generator], torch.Tensor]) -> dict[str, float]:
    made = torch.Generator().manual_seed(0)
    x = bf16(draw(made) * 0.05)
    gate_up, down = _weight(2 * WIDTH, HIDDEN, made), _weight(HIDDEN, WIDTH, made)
    exact = _expert(x, gate_up, down, lambda values: values)
    choices = {
        "bf16": bf16,
        "e4m3_ue8m0_scale": lambda values: e4m3(values, exact_scale=False),
        "e4m3_float_scale": lambda values: e4m3(values, exact_scale=True),
    }
    return {
        name: float((_expert(x, gate_up, down, rounded) - exact).norm() / exact.norm())
        for name, rounded in choices.items()
    }


def _expert(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    gate, up = (rounded(x) @ gate_up.T).chunk(2, dim=-1)
    inner = torch.nn.functional.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
    return rounded(inner) @ down.T


def _weight(rows: int, cols: int, made: torch.Generator) -> torch.Tensor:
    """float64 ``[rows, cols]`` from random 2-bit codes and block scales two binades apart."""
    values = codebook.two_bit_values(torch.randint(0, 4, (rows, cols), generator=made)).double()
    scales = torch.exp2(torch.randint(-7, -4, (rows, cols // SCALE_BLOCK, 1), generator=made).double())
    return (values.unflatten(-1, (-1, SCALE_BLOCK)) * scales).flatten(-2)
