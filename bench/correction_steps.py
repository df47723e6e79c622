"""Steps and a pack for bench/correction.py: the expert operator over layers of the real geometry, skewed routing."""

from __future__ import annotations

import os
import statistics
import time
import zlib
from collections import deque
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch

from moet_w2.cache.key import CacheKey
from moet_w2.correction import codes
from moet_w2.correction.pool import Pool
from moet_w2.correction.store import Pack
from moet_w2.geometry import LayerGeometry
from moet_w2.kernels import experts as kernels

GEOMETRY = LayerGeometry(experts=256, hidden=4096, width=2048)
TOKENS, TOP_K = 20, 6
"""4 requests of 5 tokens each (DSpark), 6 experts a token."""
DISTINCT_ROWS = 64
BATCHES = 256
DRIFT_STEPS = 64
"""Steps after which some of the popularity has moved on."""
BLOCK = 64
AHEAD = 2
"""Steps in flight, as under asynchronous scheduling."""


class Boundary(Protocol):
    """What a step calls before it is submitted."""

    def boundary(self) -> None: ...


class FewRows(Pack):
    """A pack whose rows are :data:`DISTINCT_ROWS` random ones in turn, read and checked as any other."""

    def __init__(self, root: Path, key: CacheKey) -> None:
        super().__init__(root, key)
        random, crcs = numpy.random.default_rng(0), []
        for number in range(DISTINCT_ROWS):
            row = random.bytes(self.row_bytes)
            os.pwrite(self._file, row, self._offset(0, number))
            parts = codes.row_slices(key.geometry).items()
            crcs.append({name: zlib.crc32(memoryview(row)[part]) for name, part in parts})
        for layer in range(key.layers):
            numbers = [layer * key.geometry.experts + expert for expert in range(key.geometry.experts)]
            self._vouched[layer] = [crcs[number % DISTINCT_ROWS] for number in numbers]

    def _offset(self, layer: int, expert: int) -> int:
        return super()._offset(0, (layer * self.key.geometry.experts + expert) % DISTINCT_ROWS)


def popularity_batches(layers: int) -> tuple[torch.Tensor, numpy.ndarray]:
    """Routings of :data:`BATCHES` steps, int32 ``[batches, layers, tokens, k]`` on the device, and popularity
    ``[layers, experts]`` at the start. Popularity falls with rank (Zipf); every DRIFT_STEPS steps two of the experts
    of each layer trade places."""
    generator = torch.Generator("cuda").manual_seed(0)
    zipf = torch.log(1.0 / torch.arange(1, GEOMETRY.experts + 1, device="cuda", dtype=torch.float32))
    order = torch.rand(layers, GEOMETRY.experts, device="cuda", generator=generator).argsort(1)
    heat = zipf[order]
    start, batches = heat.exp().cpu().numpy(), []
    for batch in range(BATCHES):
        if batch and batch % DRIFT_STEPS == 0:
            swap = torch.randint(GEOMETRY.experts, (layers, 2), device="cuda", generator=generator)
            heat = heat.scatter(1, swap, heat.gather(1, swap.flip(1)))
        noise = torch.rand(layers, TOKENS, GEOMETRY.experts, device="cuda", generator=generator)
        gumbel = -torch.log(-torch.log(noise.clamp(1e-9, 1 - 1e-7)))
        batches.append((heat.unsqueeze(1) + gumbel).topk(TOP_K, dim=-1).indices.int())
    return torch.stack(batches), start


class Steps:
    """Replayed graphs of the expert operator over all layers, and the events around them."""

    def __init__(self, layers: int, pool: Pool) -> None:
        self.storages = [torch.empty(GEOMETRY.nbytes, dtype=torch.uint8, device="cuda") for _ in range(layers)]
        for storage in self.storages:
            storage.random_(0, 256)
            for name in ("sc13", "sc2"):
                part = GEOMETRY.parts[name]
                storage[part.offset : part.offset + part.nbytes] = 120
        self.batches, self.popularity = popularity_batches(layers)
        self.ids = self.batches[0].clone()
        self.count = 0
        x = torch.randn(TOKENS, GEOMETRY.hidden, device="cuda").bfloat16()
        weights = torch.full((TOKENS, TOP_K), 0.25, device="cuda")

        def step() -> None:
            for layer, storage in enumerate(self.storages):
                views = (pool.rows, pool.table[layer], pool.counts[layer])
                shape = (GEOMETRY.experts, GEOMETRY.width)
                kernels.experts(x, weights, self.ids[layer], storage, *shape, 10.0, *views)

        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()
        self._flying: deque[torch.cuda.Event] = deque()

    def run(self, manager: Boundary | None) -> tuple[torch.cuda.Event, torch.cuda.Event, float]:
        """Submit one step; the events around its graph, and the host's seconds in the boundary."""
        seconds = 0.0
        if manager is not None:
            started = time.perf_counter()
            manager.boundary()
            seconds = time.perf_counter() - started
        self.ids.copy_(self.batches[self.count % BATCHES])
        self.count += 1
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        self.graph.replay()
        after.record()
        self._flying.append(after)
        if len(self._flying) > AHEAD:
            self._flying.popleft().synchronize()
        return before, after, seconds

    def block(self, manager: Boundary | None) -> dict[str, Any]:
        """BLOCK steps: milliseconds a step from first to last, milliseconds between two graphs, boundary seconds."""
        made = [self.run(manager) for _ in range(BLOCK)]
        torch.cuda.synchronize()
        gaps = [one[1].elapsed_time(two[0]) for one, two in zip(made, made[1:], strict=False)]
        whole = made[0][1].elapsed_time(made[-1][1]) / (BLOCK - 1)
        return {"step_ms": whole, "gap_ms": statistics.mean(gaps), "boundary": [seconds for _, _, seconds in made]}
