"""A worker process's layers, as bench/startup.py needs them: read from a cache, built, and compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from safetensors import safe_open
from startup_files import CHUNK, Noise

from moet_w2 import cuda_host, topology
from moet_w2.cache.key import CacheKey
from moet_w2.cache.load import WORKERS, load
from moet_w2.host_memory import HostAllocation
from moet_w2.layer import W2Layer
from moet_w2.placement import Placement


class Server:
    """Holds layers as a worker process does, and fills them in either way.

    Attributes:
        layers: number of layers.
        ways: how the last read was done, layers by way.
        mapped: number of places in host memory.
    """

    def __init__(self, root: Path, key: CacheKey, layers: int, device: torch.device) -> None:
        self.root, self.key, self.layers, self.device = root, key, layers, device
        self.ways: Counter[str] = Counter()
        on_gpu = device.type == "cuda"
        count = layers if on_gpu else min(WORKERS, layers)
        self._places = [self._place(n, mapped=n % 2 == 1 or not on_gpu) for n in range(count)]
        self.mapped = sum(host is not None for host, _ in self._places)

    def read(self) -> None:
        """Load every layer from the cache; where there are fewer places than layers, one after another into them."""
        self.ways = Counter()
        for start in range(0, self.layers, len(self._places)):
            layers = [self._layer(key) for key in range(start, min(start + len(self._places), self.layers))]
            results = load(self.root, self.key, layers)
            if any(result.miss is not None for result in results):
                raise SystemExit(f"a layer was not read: {results}")
            self.ways.update(str(result.way) for result in results)

    def construct(self, source: Path, key: int) -> None:
        """Build one layer from its checkpoint tensors."""
        layer = self._layer(key)
        with safe_open(source, framework="pt") as shard:
            for name in shard.keys():
                expert, projection, kind = name.split(".")
                layer.put(int(expert), projection, kind, shard.get_tensor(name))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if not layer.complete:
            raise SystemExit(f"{source} holds less than a layer")

    def holds(self, noise: Noise) -> bool:
        """Whether the places hold, byte for byte, the layers that were read last."""
        pool = torch.from_numpy(noise.pool.copy()).to(self.device)
        first = (self.layers - 1) // len(self._places) * len(self._places)
        for key in range(first, self.layers):
            storage = self._layer(key).storage
            for number, start in enumerate(range(0, storage.numel(), CHUNK)):
                part, offset = storage[start : start + CHUNK], noise.offset(key, number)
                if not torch.equal(part, pool[offset : offset + part.numel()]):
                    return False
        return True

    def _place(self, number: int, mapped: bool) -> tuple[HostAllocation | None, torch.Tensor]:
        nbytes = self.key.geometry.nbytes
        if not mapped:
            return None, torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        if self.device.type != "cuda":
            host = HostAllocation(f"layer {number}", nbytes, topology.cpu_locality())
            return host, host.tensor()
        locality = topology.gpu_locality(cuda_host.pci_address(torch.cuda.current_device()))
        host = HostAllocation(f"layer {number}", nbytes, locality, cuda_host.CudaRegistrar())
        return host, cuda_host.device_view(host.device_address or 0, nbytes, self.device)

    def _layer(self, key: int) -> W2Layer:
        """An empty layer over its place."""
        host, storage = self._places[key % len(self._places)]
        return W2Layer(key, self.key.geometry, Placement.MAPPED if host else Placement.DEVICE, storage, host)
