"""The expert operations in plain torch: what the kernels are held against, and what a CPU runs."""

from __future__ import annotations

from functools import cache

import torch

from . import codebook, planes
from .correction import codes
from .correction.tier import Resident
from .geometry import SCALE_BLOCK
from .layer import W2Layer


def dequantize(layer: W2Layer, part: str, experts: torch.Tensor) -> torch.Tensor:
    """Weights of some experts.

    Args:
        layer: the layer.
        part: ``planes13`` or ``planes2``.
        experts: int64 ``[U]``, expert indices.

    Returns:
        float32 ``[U, N, K]``: for ``planes13`` N = 2 I (gate rows, then up rows) and K = H, for ``planes2``
        N = H and K = I.
    """
    rows, cols = _shape(layer, part)
    codes = planes.unpack_codes(layer.view(part)[experts], rows, cols)
    scales = planes.unpack_scales(layer.view("sc" + part.removeprefix("planes"))[experts], rows, cols)
    values = codebook.two_bit_values(codes).unflatten(-1, (cols // SCALE_BLOCK, SCALE_BLOCK))
    return (values * codebook.scale_values(scales).unsqueeze(-1)).flatten(-2)


def clamped_swiglu(gate_up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)``; no clamp where ``limit`` is None.

    Args:
        gate_up: ``[..., 2 I]``, gate first.
        limit: the checkpoint's ``swiglu_limit``.

    Returns:
        ``[..., I]`` in the input's dtype.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return torch.nn.functional.silu(gate) * up


def moe(
    layer: W2Layer,
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    limit: float | None,
    resident: Resident | None = None,
) -> torch.Tensor:
    """Routed experts of one layer over a batch of tokens, products accumulated in float32.

    Args:
        layer: the layer, complete.
        x: ``[T, H]``, bfloat16 or float32.
        topk_weights: float ``[T, k]``, routed scaling already inside.
        topk_ids: integer ``[T, k]``; -1 marks a padded row and adds nothing.
        limit: SwiGLU clamp.
        resident: experts that hold a correction slot compute with its FP4 codes instead of the base's.

    Returns:
        ``[T, H]`` in ``x``'s dtype; a partial sum under tensor parallelism. Each token's experts are added in
        the order of ``topk_ids``.
    """
    tokens, k = topk_ids.shape
    hidden, width = layer.geometry.hidden, layer.geometry.width
    contributions = torch.zeros(tokens, k, hidden, dtype=torch.float32, device=x.device)
    experts = torch.unique(topk_ids[topk_ids >= 0]).long()
    weights = _weights(layer, experts, resident)
    # A sum over columns does not mind their order: permuting the activations is cheaper than the weights.
    outer = x.float()[:, planes.pattern_columns(hidden).flatten()]
    inner_columns = planes.pattern_columns(width).flatten()
    for expert, (w13, w2) in weights.items():
        token, slot = torch.nonzero(topk_ids == expert, as_tuple=True)
        inner = clamped_swiglu(outer[token] @ w13.T, limit)
        # The kernels hand the inner activation on in the activation dtype; rounding here keeps the two alike.
        inner = inner.to(x.dtype).float()[:, inner_columns]
        contributions[token, slot] = inner @ w2.T
    weighted = contributions * topk_weights.float().unsqueeze(-1)
    total = weighted[:, 0].clone()
    for slot in range(1, k):
        total += weighted[:, slot]
    return total.to(x.dtype)


def _weights(
    layer: W2Layer, experts: torch.Tensor, resident: Resident | None
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Gate and up ``[2 I, H]`` and down ``[H, I]`` of each expert, columns in pattern order: from its row where it has
    a slot, else from its planes. Every byte is read once, and no plane of an expert that has a slot."""
    slots = torch.full_like(experts, -1) if resident is None else resident.slots[experts]
    base = experts[slots < 0]
    planes_of = zip(_pattern_order(layer, "planes13", base), _pattern_order(layer, "planes2", base), strict=True)
    found = dict(zip(base.tolist(), planes_of, strict=True))
    if resident is not None:
        for expert, slot in zip(experts.tolist(), slots.tolist(), strict=True):
            if slot >= 0:
                found[expert] = _corrected(layer, expert, resident.rows[slot])
    return found


def _pattern_order(layer: W2Layer, part: str, experts: torch.Tensor) -> torch.Tensor:
    """What :func:`dequantize` gives, columns as :func:`moet_w2.planes.pattern_columns` lists them; much faster."""
    rows, cols = _shape(layer, part)
    patterns = planes.row_patterns(layer.view(part)[experts], rows, cols)
    values = torch.index_select(_pattern_values(patterns.device), 0, patterns.view(-1)).view(torch.float32)
    scales = planes.unpack_scales(layer.view("sc" + part.removeprefix("planes"))[experts], rows, cols)
    return _scaled(values.view(len(experts), rows, cols), scales)


def _scaled(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Scale ``[..., N, K]`` in place; pattern order keeps scale blocks together."""
    values.view(*scales.shape, SCALE_BLOCK).mul_(codebook.scale_values(scales).unsqueeze(-1))
    return values


def corrected(layer: W2Layer, expert: int, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of an expert from its correction row, with the base's scales.

    Args:
        layer: the layer.
        expert: expert index.
        row: uint8 ``[row_bytes]``, see :mod:`moet_w2.correction.codes`.

    Returns:
        float32 ``[2 I, H]`` (gate rows, then up rows) and ``[H, I]``.
    """
    hidden, width = layer.geometry.hidden, layer.geometry.width
    part = codes.row_slices(layer.geometry)
    gate_up = torch.cat([codes.unpack(row[part[name]], width, hidden) for name in ("w1", "w3")])
    sc13 = planes.unpack_scales(layer.view("sc13")[expert], 2 * width, hidden)
    sc2 = planes.unpack_scales(layer.view("sc2")[expert], hidden, width)
    down = codes.unpack(row[part["w2"]], hidden, width)
    return codebook.mxfp4_values(gate_up, sc13), codebook.mxfp4_values(down, sc2)


def _corrected(layer: W2Layer, expert: int, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`corrected` gives, columns in pattern order; much faster."""
    hidden, width = layer.geometry.hidden, layer.geometry.width
    part = codes.row_slices(layer.geometry)
    gate_up = torch.cat([codes.pattern_values(row[part[name]], width, hidden) for name in ("w1", "w3")])
    down = codes.pattern_values(row[part["w2"]], hidden, width)
    sc13 = planes.unpack_scales(layer.view("sc13")[expert], 2 * width, hidden)
    sc2 = planes.unpack_scales(layer.view("sc2")[expert], hidden, width)
    return _scaled(gate_up, sc13), _scaled(down, sc2)


@cache
def _pattern_values(device: torch.device) -> torch.Tensor:
    """complex128 ``[PATTERNS]``: the four float32 values of each pattern. torch copies one element a look-up much
    faster than a row of four."""
    return codebook.two_bit_values(planes.pattern_codes(device)).view(torch.complex128).view(-1)


def _shape(layer: W2Layer, part: str) -> tuple[int, int]:
    hidden, width = layer.geometry.hidden, layer.geometry.width
    return (2 * width, hidden) if part == "planes13" else (hidden, width)
