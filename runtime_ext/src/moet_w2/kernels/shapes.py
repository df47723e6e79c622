"""How a call is cut up: which kernels, their blocks and shared memory, and the workspace. Pure: no GPU is asked.

Block sizes and shared memory follow what the kernels' sources state; the sizes here are the host's half of that.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..errors import UnsupportedError
from ..geometry import PARTS, TILE_COLS, TILE_ROWS, LayerGeometry
from . import params

DECODE_TOKENS = 32
"""Calls over more tokens than this take the prefill kernels."""
DECODE_CHUNKS = (8, 16, 32)
"""Tokens an expert's unit of work may have: the smallest that is no less than the call's tokens, or the last."""
PREFILL_CHUNK = 64
MAX_TOP_K = 16
MAX_EXPERTS = 1024
MAX_COLS = 32768
"""Hidden size and expert width: the prefill kernels count elements of the activations in 31 bits."""
MAX_ROUTES = 65535
"""Routes of one call: the routing kernel counts in 16 bits. A longer batch goes in several calls."""
MAX_SHARED = 99 << 10
"""Bytes of shared memory that a block may have on every supported device (sm_89 and sm_120 have the least)."""

_THREADS = 1024  # most of a block
_FEW_ROUTES = 1024  # up to here the routing kernel needs no more threads than experts
_PREFILL_THREADS, _PREFILL_SHARED = 256, 3 * PREFILL_CHUNK * (128 + 32) * 2
_COMBINE_COLS, _COMBINE_THREADS = 2048, 256

_ENTRY_BYTES = ctypes.sizeof(params.Entry)
_ALIGNMENT = 256
_WARP = 32
_DECODE_WARPS = 4  # most of a block of decode.cu
_PLACE_BYTES = 12


@dataclass(frozen=True)
class Launch:
    """One kernel's launch.

    Attributes:
        source: file of kernels/src, without its suffix.
        name: the kernel in it.
        grid: blocks along x, y, z; None for as many as the device runs at a time.
        block: threads of a block.
        shared: bytes of dynamic shared memory.
    """

    source: str
    name: str
    grid: tuple[int, int, int] | None
    block: int
    shared: int


@dataclass(frozen=True, eq=False)
class Plan:
    """One call's descriptor. There is one object for the same arguments of :func:`plan`, so that it can be a key.

    Attributes:
        geometry: the layer on this rank.
        tokens: T.
        top_k: experts a token is routed to.
        chunk: most routes of an entry.
        entries: room for entries.
        routes: room for routes.
        steps: the four launches, in their order: routing, first GEMM, second GEMM, combine.
        layer_bytes: of planes and scales of the layer.
        row_bytes: of a correction row.
        offsets: where planes13, sc13, planes2 and sc2 begin in a layer.
        sizes: bytes of one expert in each of them.
        workspace: ``(offset, bytes)`` of entries, header, routes, inner and routed.
        workspace_bytes: all of them, with their alignment.
    """

    geometry: LayerGeometry
    tokens: int
    top_k: int
    chunk: int
    entries: int
    routes: int
    steps: tuple[Launch, Launch, Launch, Launch]
    layer_bytes: int
    row_bytes: int
    offsets: tuple[int, int, int, int]
    sizes: tuple[int, int, int, int]
    workspace: dict[str, tuple[int, int]]
    workspace_bytes: int

    def views(self, workspace: torch.Tensor) -> dict[str, torch.Tensor]:
        """A workspace's parts as tensors: entries uint8 ``[entries, 48]``, header int32 ``[2]``, routes int32
        ``[routes]``, inner bfloat16 ``[routes, I]``, routed float32 ``[routes, H]``."""
        kinds = {
            "entries": (torch.uint8, (self.entries, _ENTRY_BYTES)),
            "header": (torch.int32, (2,)),
            "routes": (torch.int32, (self.routes,)),
            "inner": (torch.bfloat16, (self.routes, self.geometry.width)),
            "routed": (torch.float32, (self.routes, self.geometry.hidden)),
        }
        views = {}
        for name, (dtype, shape) in kinds.items():
            offset, nbytes = self.workspace[name]
            views[name] = workspace[offset : offset + nbytes].view(dtype).view(shape)
        return views


@lru_cache(maxsize=4096)
def plan(experts: int, hidden: int, width: int, tokens: int, top_k: int) -> Plan:
    """Choose kernels and sizes for a call.

    Args:
        experts: routed experts E.
        hidden: model width H.
        width: expert width I on this rank.
        tokens: T, at least 1.
        top_k: experts a token is routed to.

    Raises:
        UnsupportedError: the kernels do not take such a layer or routing.
    """
    geometry = LayerGeometry(experts, hidden, width)
    for name, value, most in (
        ("experts", experts, MAX_EXPERTS),
        ("experts a token", top_k, MAX_TOP_K),
        ("columns of hidden size", hidden, MAX_COLS),
        ("columns of expert width", width, MAX_COLS),
    ):
        if not 1 <= value <= most:
            raise UnsupportedError(
                f"the CUDA kernels take 1..{most} {name}, not {value}; serve without --quantization moet_w2"
            )
    routes = tokens * top_k
    if not 1 <= routes <= MAX_ROUTES:
        raise UnsupportedError(f"{tokens} tokens with {top_k} experts each: a call takes 1..{MAX_ROUTES} routes")
    chunk = next((c for c in DECODE_CHUNKS if tokens <= c), DECODE_CHUNKS[-1])
    # Every expert that is routed to has one entry that may be short; all its others are full.
    entries = min(experts, routes) + routes // chunk
    gemms = _decode(13, hidden, chunk, entries, routes), _decode(2, width, chunk, entries, routes)
    if tokens > DECODE_TOKENS or max(gemm.shared for gemm in gemms) > MAX_SHARED:
        chunk, entries = PREFILL_CHUNK, min(experts, routes) + routes // PREFILL_CHUNK
        gemms = _prefill(13), _prefill(2)
    combine_grid = (tokens, -(-hidden // _COMBINE_COLS), 1)
    steps = (_routing(experts, routes), *gemms, Launch("combine", "moet_combine", combine_grid, _COMBINE_THREADS, 0))
    sizes = {
        "entries": entries * _ENTRY_BYTES,
        "header": 8,
        "routes": routes * 4,
        "inner": routes * width * 2,
        "routed": routes * hidden * 4,
    }
    workspace, end = {}, 0
    for name, nbytes in sizes.items():
        workspace[name] = (end, nbytes)
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    parts = [geometry.parts[name] for name in PARTS]
    return Plan(
        geometry,
        tokens,
        top_k,
        chunk,
        entries,
        routes,
        steps,
        geometry.nbytes,
        geometry.correction_row_bytes,
        tuple(part.offset for part in parts),
        tuple(part.row_bytes for part in parts),
        workspace,
        end,
    )


def _routing(experts: int, routes: int) -> Launch:
    threads = -(-experts // _WARP) * _WARP if routes <= _FEW_ROUTES else _THREADS
    return Launch("routing", "moet_routing", (1, 1, 1), threads, 2 * (threads // _WARP) * experts)


def _prefill(number: int) -> Launch:
    return Launch("prefill", f"moet_prefill{number}", None, _PREFILL_THREADS, _PREFILL_SHARED)


def _decode(number: int, cols: int, chunk: int, entries: int, routes: int) -> Launch:
    """A GEMM of decode.cu over ``cols`` columns."""
    token_tiles = chunk // 8
    row_tiles, stages = (4 if token_tiles == 1 else 2), (2 if token_tiles <= 2 else 3)
    warps = 1
    while warps < _DECODE_WARPS and warps * 4 * TILE_COLS < cols:
        warps *= 2
    ring = stages * row_tiles * (2 * 512 + 128)
    spread = row_tiles * TILE_ROWS * 8 * 4
    sums = token_tiles * row_tiles * _WARP * 16
    shared = warps * (ring + spread + sums) + entries * _ENTRY_BYTES + routes * _PLACE_BYTES
    return Launch("decode", f"moet_decode{number}_n{chunk}", None, warps * _WARP, shared)
