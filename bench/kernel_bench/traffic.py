"""Bytes that a call must move: each weight of a routed expert, each activation in and out, once."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moet_w2.geometry import LayerGeometry


class Traffic(NamedTuple):
    """Bytes of one call.

    Attributes:
        experts: different experts that are routed to.
        weights13: planes, or FP4 codes, and scales of the first GEMM.
        weights2: of the second.
        gemm13: ``weights13``, activations in, inner activations out.
        gemm2: ``weights2``, inner activations in, routed rows out.
        chain: weights of both, activations in, output out; what passes between the kernels stays in the cache where
            it is small, and is counted nowhere here.
    """

    experts: int
    weights13: int
    weights2: int
    gemm13: int
    gemm2: int
    chain: int


def of_call(geometry: LayerGeometry, ids: torch.Tensor, fp4: bool) -> Traffic:
    """Count a call's bytes.

    Args:
        geometry: the layer.
        ids: integer ``[T, k]``; negative ones count for nothing.
        fp4: every expert from its correction row, not from planes.
    """
    routed = ids[ids >= 0]
    experts, routes = len(torch.unique(routed)), routed.numel()
    rows = int((ids >= 0).any(-1).sum())
    parts, codes = geometry.parts, geometry.correction_row_bytes
    down = codes // 3
    one13 = (codes - down if fp4 else parts["planes13"].row_bytes) + parts["sc13"].row_bytes
    one2 = (down if fp4 else parts["planes2"].row_bytes) + parts["sc2"].row_bytes
    x, inner, routed_rows = rows * geometry.hidden * 2, routes * geometry.width * 2, routes * geometry.hidden * 4
    out = ids.shape[0] * geometry.hidden * 2
    return Traffic(
        experts,
        experts * one13,
        experts * one2,
        experts * one13 + x + inner,
        experts * one2 + inner + routed_rows,
        experts * (one13 + one2) + x + out,
    )
