"""How payload files reach device memory and host memory: rings of buffers, direct I/O, and what stands in its way."""

import errno
import mmap
import os
import random
from pathlib import Path

import own_mounts
import pytest
import torch
from generators import TINY, device_layer, filled_layer

from moet_w2.cache import layout, load, reads, staging
from moet_w2.cache.eligibility import Miss
from moet_w2.cache.key import CacheKey
from moet_w2.cache.publish import publish
from moet_w2.layer import Shard

KEY = CacheKey("checkpoint-a", TINY, Shard(), 7)
CHUNK = 16 << 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(KEY.layers):
        layer, _ = filled_layer(TINY, seed=number)
        layer.key = number
        publish(tmp_path, KEY, layer)
    return tmp_path


def page_aligned(nbytes: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8)


class LateCopies:
    """Copies in order, but only when they are waited for, or sometimes a little before: as a stream may."""

    def __init__(self, seed: int = 0) -> None:
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.started = self.done = self.most = 0
        self._chance = random.Random(seed)

    def start(self, target: torch.Tensor, source: torch.Tensor) -> staging.Wait:
        self.waiting.append((target, source))
        self.started += 1
        mine = self.started
        self.most = max(self.most, len(self.waiting))
        if self._chance.random() < 0.3:
            self.run(self._chance.randrange(mine + 1))
        return lambda: self.run(mine)

    def run(self, upto: int) -> None:
        while self.done < upto:
            target, source = self.waiting.pop(0)
            target.copy_(source)
            self.done += 1


def ring(copies: staging.Copies, chunk: int = CHUNK) -> staging.Ring:
    return staging.Ring([page_aligned(chunk) for _ in range(staging.BUFFERS)], copies)


def opened(root: Path, layer: int = 0) -> reads.Payload:
    return reads.Payload(layout.payload_path(layout.folder(root, KEY), layer), direct=True)


# ---- the ring


@pytest.mark.parametrize("chunk", [4096, CHUNK, 1 << 20], ids=["many turns", "some turns", "one buffer is enough"])
@pytest.mark.parametrize("seed", range(3))
def test_late_copies_find_their_bytes_unchanged(root: Path, chunk: int, seed: int) -> None:
    copies, layer, seen = LateCopies(seed), device_layer(TINY), []
    with opened(root) as payload:
        ring(copies, chunk).fill(layer.storage, payload, seen.append)
    assert torch.equal(layer.storage, filled_layer(TINY, seed=0)[0].storage)
    assert not copies.waiting and copies.started == -(-TINY.nbytes // chunk)
    assert sum(seen) == TINY.nbytes


def test_reads_and_copies_overlap(root: Path) -> None:
    copies = LateCopies()
    copies._chance.random = lambda: 1.0  # no copy is done before it is waited for
    with opened(root) as payload:
        ring(copies).fill(device_layer(TINY).storage, payload, lambda nbytes: None)
    assert copies.most == staging.BUFFERS


def test_a_ring_that_does_not_wait_is_caught(root: Path) -> None:
    """The gate works: buffers that are read into while a copy still needs them give other bytes."""

    class Forgetful(LateCopies):
        def start(self, target, source):
            super().start(target, source)
            last = self.started == -(-TINY.nbytes // CHUNK)
            return (lambda: self.run(self.started)) if last else (lambda: None)

    copies, layer = Forgetful(), device_layer(TINY)
    copies._chance.random = lambda: 1.0
    with opened(root) as payload:
        ring(copies).fill(layer.storage, payload, lambda nbytes: None)
    assert not torch.equal(layer.storage, filled_layer(TINY, seed=0)[0].storage)


def test_after_a_failed_read_no_copy_is_under_way(root: Path, monkeypatch) -> None:
    """The layer is built from the checkpoint next: a copy that came late would overwrite it."""
    copies, payload = LateCopies(), opened(root)
    copies._chance.random = lambda: 1.0
    real = reads.read_exactly

    def fail_in_the_third(descriptor, view, offset, progress):
        if offset >= layout.HEAD + 2 * CHUNK:
            raise OSError(errno.EIO, "made up")
        real(descriptor, view, offset, progress)

    monkeypatch.setattr(reads, "read_exactly", fail_in_the_third)
    with payload, pytest.raises(OSError, match="made up"):
        ring(copies).fill(device_layer(TINY).storage, payload, lambda nbytes: None)
    assert copies.started == copies.done == 2


def test_layers_for_a_device_go_through_one_ring_a_thread(root: Path, monkeypatch) -> None:
    """The whole way with threads and batches; "meta" stands for a device, since none is here."""
    rings: list[LateCopies] = []

    def on(device: torch.device) -> staging.Ring:
        rings.append(LateCopies(len(rings)))
        return ring(rings[-1])

    class Elsewhere(torch.Tensor):
        is_cpu = False

    monkeypatch.setattr(staging.Ring, "on", on)
    layers = [device_layer(TINY, number) for number in range(KEY.layers)]
    for layer in layers:
        layer.storage = layer.storage.as_subclass(Elsewhere)
    results = load.load(root, KEY, layers, workers=3, batch=5)
    assert [result.miss for result in results] == [None] * 7
    assert 1 <= len(rings) <= 3 and sum(copies.started for copies in rings) == 7 * -(-TINY.nbytes // CHUNK)
    for number, layer in enumerate(layers):
        assert torch.equal(layer.storage.as_subclass(torch.Tensor), filled_layer(TINY, seed=number)[0].storage)


# ---- direct I/O, and filesystems without it


def test_a_real_filesystem_without_direct_io_is_read_buffered(tmp_path: Path) -> None:
    """A ramfs: one of the filesystems that refuse O_DIRECT."""
    source, layer = filled_layer(TINY)[0], device_layer(TINY)
    layer.storage = page_aligned(TINY.nbytes)

    def work() -> object:
        own_mounts.mount("ramfs", tmp_path)
        publish(tmp_path, KEY, source)
        result = load.load(tmp_path, KEY, [layer])[0]
        return result.miss, result.direct, bytes(layer.storage.numpy()) == bytes(source.storage.numpy())

    assert own_mounts.run(work) == "(None, False, True)"


@pytest.mark.parametrize("when", ["opening", "reading"])
def test_direct_io_that_is_refused_late_or_early_gives_way(root: Path, monkeypatch, when: str) -> None:
    real_open, real_read = os.open, os.preadv
    direct: set[int] = set()

    def refuse() -> None:
        raise OSError(errno.EINVAL, "no direct I/O here")

    def opening(path, flags, *args):
        if flags & os.O_DIRECT and when == "opening":
            refuse()
        descriptor = real_open(path, flags, *args)
        (direct.add if flags & os.O_DIRECT else direct.discard)(descriptor)
        return descriptor

    def reading(descriptor, buffers, offset):
        if descriptor in direct:
            refuse()
        return real_read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "preadv", reading)
    before = len(os.listdir("/proc/self/fd"))
    layer = device_layer(TINY)
    layer.storage = page_aligned(TINY.nbytes)
    result = load.load(root, KEY, [layer])[0]
    assert (result.miss, result.direct) == (None, False)
    assert torch.equal(layer.storage, filled_layer(TINY, seed=0)[0].storage)
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_that_is_not_aligned_is_read_buffered(root: Path) -> None:
    layer = device_layer(TINY)
    layer.storage = page_aligned(TINY.nbytes + 4096)[64 : 64 + TINY.nbytes]
    result = load.load(root, KEY, [layer])[0]
    assert (result.miss, result.direct) == (None, False)
    assert torch.equal(layer.storage, filled_layer(TINY, seed=0)[0].storage)


def test_a_link_in_place_of_a_payload_is_not_followed(root: Path) -> None:
    path = layout.payload_path(layout.folder(root, KEY), 0)
    path.rename(root / "outside.w2")
    path.symlink_to(root / "outside.w2")
    result = load.load(root, KEY, [device_layer(TINY)])[0]
    assert result.miss is Miss.READ_ERROR and "symbolic links" in result.detail
