"""The four kernels in torch, on parameter structs that point into CPU memory: what the benchmark's own tests run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from kernel_bench import chain

from moet_w2 import codebook, planes
from moet_w2.correction import codes
from moet_w2.kernels import params


class Emulated:
    """A kernel with the interface of :class:`moet_w2.kernels.driver.Kernel`.

    Attributes:
        spoil: called with the kernel's name and the tensor it wrote, to make it wrong.
    """

    def __init__(self, name: str, spoil: Callable[[str, torch.Tensor], None] | None = None) -> None:
        self.name, self.spoil = name, spoil

    def allow_shared(self, nbytes: int) -> None:
        pass

    def resident_blocks(self, block: int, shared: int) -> int:
        return 1

    def launch(self, grid: object, block: int, shared: int, p: ctypes.Structure, pdl: bool = False) -> None:
        run = {"routing": _routing, "combine": _combine}.get(self.name.removeprefix("moet_"))
        written = run(p) if run else _gemm(p, "13" in self.name)
        if self.spoil:
            self.spoil(self.name, written)


def find(spoil: Callable[[str, torch.Tensor], None] | None = None) -> chain.Find:
    """Where emulated kernels come from."""
    return lambda step: Emulated(step.name, spoil)


def _at(address: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    nbytes = count * dtype.itemsize
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=dtype).view(shape)


def _chosen(p: params.RoutingParams | params.CombineParams) -> torch.Tensor:
    ids = _at(p.ids, torch.int32, p.tokens, p.top_k).clone()
    ids[ids >= p.experts] = -1
    if p.padding:
        ids[_at(p.padding, torch.bool, p.tokens)] = -1
    return ids.flatten()


def _routing(p: params.RoutingParams) -> torch.Tensor:
    chosen, count, first = _chosen(p), 0, 0
    routes = _at(p.routes, torch.int32, p.tokens * p.top_k)
    for expert in range(p.experts):
        mine = torch.nonzero(chosen == expert).flatten()
        slot = int(_at(p.slots, torch.int32, p.experts)[expert]) if p.slots else -1
        row = p.rows + slot * p.row_bytes
        for done in range(0, len(mine), p.chunk):
            entry = params.Entry.from_address(p.entries + count * ctypes.sizeof(params.Entry))
            entry.weights13 = p.planes13 + expert * p.planes13_bytes if slot < 0 else row
            entry.weights2 = p.planes2 + expert * p.planes2_bytes if slot < 0 else row + p.row_down_offset
            entry.scales13 = p.scales13 + expert * p.scales13_bytes
            entry.scales2 = p.scales2 + expert * p.scales2_bytes
            entry.first, entry.count = first + done, min(p.chunk, len(mine) - done)
            entry.fp4, entry.expert = int(slot >= 0), expert
            count += 1
            if p.reads:
                _at(p.reads, torch.int64, 2)[entry.fp4] += 1
        routes[first : first + len(mine)] = mine.int()
        first += len(mine)
        if p.counts:
            _at(p.counts, torch.int64, p.experts)[expert] += len(mine)
    header = _at(p.header, torch.int32, 2)
    header[0], header[1] = count, first
    return routes


def _gemm(p: params.GemmParams, first: bool) -> torch.Tensor:
    routes = _at(p.routes, torch.int32, p.max_routes)
    rows = 2 * p.out_cols if first else p.out_cols
    out = _at(p.inner, torch.bfloat16, p.max_routes, p.out_cols) if first else None
    routed = None if first else _at(p.routed, torch.float32, p.max_routes, p.out_cols)
    for number in range(int(_at(p.header, torch.int32, 2)[0])):
        entry = params.Entry.from_address(p.entries + number * ctypes.sizeof(params.Entry))
        weight = _weight(entry, rows, p.cols, first)
        span = slice(entry.first, entry.first + entry.count)
        mine = routes[span].long()
        if first:
            x = _at(p.x, torch.bfloat16, p.max_routes // p.top_k, p.cols)[mine // p.top_k].float()
            gate, up = (x @ weight.T).chunk(2, dim=-1)
            inner = torch.nn.functional.silu(gate.clamp(max=p.limit)) * up.clamp(-p.limit, p.limit)
            out[span] = inner.bfloat16()
        else:
            x = _at(p.x, torch.bfloat16, p.max_routes, p.cols)[span].float()
            factor = _at(p.weights, torch.float32, p.max_routes)[mine].unsqueeze(-1)
            routed[mine] = factor * (x @ weight.T)
    return out if first else routed


def _weight(entry: params.Entry, rows: int, cols: int, first: bool) -> torch.Tensor:
    scales_at, at = (entry.scales13, entry.weights13) if first else (entry.scales2, entry.weights2)
    scales = planes.unpack_scales(_at(scales_at, torch.uint8, rows * cols // 32), rows, cols)
    if not entry.fp4:
        packed = _at(at, torch.uint8, rows * cols // 4)
        values = codebook.two_bit_values(planes.unpack_codes(packed, rows, cols))
        return values * codebook.scale_values(scales).repeat_interleave(32, dim=-1)
    matrices = 2 if first else 1
    one = rows // matrices
    packed = _at(at, torch.uint8, matrices, one * cols // 2)
    natural = torch.cat([codes.unpack(packed[index], one, cols) for index in range(matrices)])
    return codebook.mxfp4_values(natural, scales)


def _combine(p: params.CombineParams) -> torch.Tensor:
    chosen = _chosen(p).view(p.tokens, p.top_k)
    routed = _at(p.routed, torch.float32, p.tokens, p.top_k, p.hidden)
    total = torch.zeros(p.tokens, p.hidden)
    for choice in range(p.top_k):
        total += torch.where(chosen[:, choice, None] >= 0, routed[:, choice], 0.0)
    out = _at(p.out, torch.bfloat16, p.tokens, p.hidden)
    out.copy_(total)
    return out
