"""Routed experts of one layer on a CUDA device: descriptor, checked launch configuration, launch.

The torch operator ``moet_w2::experts`` is :func:`experts` for the dispatcher: it has a fake implementation, so it can
be traced and compiled, and it may be captured into a CUDA graph.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from . import block_scaled, driver, shapes
from .call import Call, check, pieces
from .driver import Grid, Kernel
from .params import CombineParams, GemmParams, RoutingParams
from .shapes import Plan

SCHEMA = (
    "(Tensor x, Tensor topk_weights, Tensor topk_ids, Tensor storage, int experts, int width, float? limit=None, "
    "Tensor? rows=None, Tensor? slots=None, Tensor(a!)? counts=None, Tensor? padding=None, "
    "Tensor(b!)? reads=None) -> Tensor"
)


def experts(
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    storage: torch.Tensor,
    experts: int,
    width: int,
    limit: float | None = None,
    rows: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    padding: torch.Tensor | None = None,
    reads: torch.Tensor | None = None,
) -> torch.Tensor:
    """Routed experts over a batch of tokens; what :func:`moet_w2.reference.moe` computes.

    Args:
        x: bfloat16 ``[T, H]``.
        topk_weights: float ``[T, k]``, routed scaling already inside.
        topk_ids: integer ``[T, k]``; what is negative or no expert adds nothing.
        storage: uint8, a layer's planes and scales (:mod:`moet_w2.geometry`), on the device or mapped.
        experts: routed experts E.
        width: expert width I on this rank.
        limit: SwiGLU clamp, None for none.
        rows: uint8 ``[slots, row_bytes]``, FP4 codes of experts (:mod:`moet_w2.correction.codes`), or None.
        slots: int32 ``[E]``, the row of each expert or -1 for its planes; None where ``rows`` is.
        counts: int64 ``[E]``, to which the number of routings of each expert is added, or None.
        padding: bool ``[T]``; a row where it is true is not routed, not counted, and comes out as zeros.
        reads: int64 ``[2]``, to which is added how often an expert was read: planes with scales, and scales alone
            where its codes come from a row. Once a call, and once more for each further chunk of tokens
            (:mod:`moet_w2.kernels.shapes`). None where nobody asks.

    Returns:
        bfloat16 ``[T, H]``; a partial sum under tensor parallelism.

    Raises:
        UnsupportedError: an argument that the kernels do not take, or a device without kernels. Nothing ran then.
    """
    call = Call(x, topk_weights, topk_ids, storage, experts, width, limit, rows, slots, counts, padding, reads)
    check(call)
    if topk_weights.dtype != torch.float32 or topk_ids.dtype != torch.int32:
        call = call._replace(topk_weights=topk_weights.float(), topk_ids=topk_ids.int())
    out = torch.empty_like(x)
    for piece, target in pieces(call, out):
        plan = piece.plan
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)
        enqueue(plan, piece, workspace, target)
    return out


def prepare(experts: int, hidden: int, width: int, top_k: int, device: torch.device) -> None:
    """Load every kernel that calls of a layer may need, so that none is loaded while a graph is captured.

    Raises:
        MoetError: the layer or the device is not one that the kernels serve.
    """
    index = _index(device)
    for tokens in (*shapes.DECODE_CHUNKS, shapes.DECODE_TOKENS, shapes.DECODE_TOKENS + 1):
        bind(shapes.plan(experts, hidden, width, tokens, top_k), index)


@lru_cache(maxsize=4096)
def bind(plan: Plan, device: int) -> tuple[tuple[Kernel, Grid], ...]:
    """The kernels of a plan on a device, each with its grid, in the order of ``plan.steps``.

    Raises:
        MoetError: the device is not one that the kernels serve.
    """
    bound = []
    for step in block_scaled.steps(plan, device):
        kernel = driver.kernel(step.source, step.name, device)
        kernel.allow_shared(step.shared)
        grid = step.grid or (kernel.resident_blocks(step.block, step.shared), 1, 1)
        bound.append((kernel, grid))
    return tuple(bound)


def enqueue(plan: Plan, call: Call, workspace: torch.Tensor, out: torch.Tensor) -> None:
    """Launch a checked call: routing, first GEMM, second GEMM, combine.

    Args:
        plan: the call's descriptor.
        call: the arguments; weights float32, ids int32, both contiguous.
        workspace: uint8 ``[plan.workspace_bytes]`` or more on the device; :meth:`Plan.views` reads it.
        out: bfloat16 ``[T, H]``, overwritten.
    """
    index = _index(call.x.device)
    # The device is the current one in every worker; switching costs more than the four launches.
    if torch.cuda.current_device() != index:
        with torch.cuda.device(index):
            _enqueue(plan, call, workspace, out, index)
    else:
        _enqueue(plan, call, workspace, out, index)


def _enqueue(plan: Plan, call: Call, workspace: torch.Tensor, out: torch.Tensor, device: int) -> None:
    params = parameters(plan, call, workspace, out)
    for step, (kernel, grid), struct in zip(plan.steps, bind(plan, device), params, strict=True):
        kernel.launch(grid, step.block, step.shared, struct, pdl=True)


def parameters(
    plan: Plan, call: Call, workspace: torch.Tensor, out: torch.Tensor
) -> tuple[RoutingParams, GemmParams, GemmParams, CombineParams]:
    """The parameters of a plan's four kernels; they point into the call's tensors and the workspace."""

    x, weights, ids, storage, experts, width, limit, rows, slots, counts, padding, reads = call
    base, layer = workspace.data_ptr(), storage.data_ptr()
    entries, header, routes, inner, routed = [base + offset for offset, _ in plan.workspace.values()]
    hidden, top_k = x.shape[1], plan.top_k
    ids_at, out_at = ids.data_ptr(), out.data_ptr()
    padding_at = 0 if padding is None else padding.data_ptr()
    limit = math.inf if limit is None else limit
    weights_at = weights.data_ptr()
    return (
        RoutingParams(
            ids_at,
            padding_at,
            0 if slots is None else slots.data_ptr(),
            0 if rows is None else rows.data_ptr(),
            0 if counts is None else counts.data_ptr(),
            0 if reads is None else reads.data_ptr(),
            *[layer + offset for offset in plan.offsets],
            entries,
            header,
            routes,
            *plan.sizes,
            plan.row_bytes,
            plan.row_bytes * 2 // 3,  # of three equal parts, gate and up come first
            plan.tokens,
            top_k,
            experts,
            plan.chunk,
        ),
        GemmParams(
            entries,
            header,
            routes,
            x.data_ptr(),
            inner,
            0,
            weights_at,
            hidden,
            width,
            top_k,
            plan.entries,
            plan.routes,
            limit,
        ),
        GemmParams(
            entries,
            header,
            routes,
            inner,
            0,
            routed,
            weights_at,
            width,
            hidden,
            top_k,
            plan.entries,
            plan.routes,
            limit,
        ),
        CombineParams(ids_at, padding_at, routed, out_at, plan.tokens, top_k, hidden, experts),
    )


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _fake(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return torch.empty_like(x)


# The library object keeps the registrations alive.
_LIBRARY = torch.library.Library("moet_w2", "DEF")
_LIBRARY.define("experts" + SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_contiguous_strides))
_LIBRARY.impl("experts", experts, "CUDA")
torch.library.register_fake("moet_w2::experts", _fake, lib=_LIBRARY)
