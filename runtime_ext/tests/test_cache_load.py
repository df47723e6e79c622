"""How payload files reach device memory and host memory: rings of buffers, direct I/O, and what stands in its way."""

import errno
import fcntl
import mmap
import os
import random
import weakref
from pathlib import Path

import own_mounts
import pytest
import torch
from generators import TINY, device_layer, filled_layer, publish_layers

from moet_w2.cache import layout, load, reads, staging
from moet_w2.cache.eligibility import Miss
from moet_w2.cache.key import CacheKey
from moet_w2.cache.publish import publish
from moet_w2.layer import Shard, W2Layer

KEY = CacheKey("checkpoint-a", TINY, Shard(), 7)
CHUNK = 16 << 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    publish_layers(tmp_path, KEY)
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
    return reads.Payload(layout.payload_path(layout.folder(root, KEY), layer), aligned=True)


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


class PinnedMemory:
    """As torch's allocator: a block that is freed stays pinned, for the next that asks, until the cache is emptied.

    Attributes:
        used, kept: bytes in use, and free but pinned.
        most: bytes pinned at once.
        rings: the copies of each ring that was made.
    """

    def __init__(self) -> None:
        self.used = self.kept = self.most = 0
        self.rings: list[LateCopies] = []

    def ring(self, device: torch.device) -> staging.Ring:
        self.rings.append(LateCopies(len(self.rings)))
        return staging.Ring([self._block() for _ in range(staging.BUFFERS)], self.rings[-1])

    def give_back(self, device: torch.device) -> None:
        self.kept = 0

    def _block(self) -> torch.Tensor:
        block = page_aligned(CHUNK)
        self.used += CHUNK
        self.most = max(self.most, self.used + self.kept)
        weakref.finalize(block, self._freed)
        return block

    def _freed(self) -> None:
        self.used -= CHUNK
        self.kept += CHUNK


@pytest.fixture
def pinned(monkeypatch) -> PinnedMemory:
    memory = PinnedMemory()
    monkeypatch.setattr(staging.Ring, "on", memory.ring)
    monkeypatch.setattr(staging, "give_back", memory.give_back)
    return memory


class Elsewhere(torch.Tensor):
    """Memory of a CPU that stands for a device's, since none is here."""

    is_cpu = False


def device_layers() -> list[W2Layer]:
    layers = [device_layer(TINY, number) for number in range(KEY.layers)]
    for layer in layers:
        layer.storage = layer.storage.as_subclass(Elsewhere)
    return layers


def test_layers_for_a_device_go_through_one_ring_a_thread(root: Path, pinned: PinnedMemory) -> None:
    """The whole way with threads and batches."""
    layers = device_layers()
    results = load.load(root, KEY, layers, workers=3, batch=5)
    assert [result.miss for result in results] == [None] * 7
    turns = 7 * -(-TINY.nbytes // CHUNK)
    assert 1 <= len(pinned.rings) <= 3 and sum(copies.started for copies in pinned.rings) == turns
    for number, layer in enumerate(layers):
        assert torch.equal(layer.storage.as_subclass(torch.Tensor), filled_layer(TINY, seed=number)[0].storage)


def test_after_a_load_nothing_stays_pinned(root: Path, pinned: PinnedMemory) -> None:
    layers = device_layers()
    layout.payload_path(layout.folder(root, KEY), 2).unlink()
    results = load.load(root, KEY, layers, workers=3, batch=5)
    assert [result.layer for result in results if result.miss is not None] == [2]
    assert pinned.most == len(pinned.rings) * staging.BUFFERS * CHUNK
    assert (pinned.used, pinned.kept) == (0, 0)


def test_a_load_that_pinned_nothing_asks_no_device(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(staging, "give_back", lambda device: pytest.fail("no ring was made"))
    assert load.load(root, KEY, [device_layer(TINY)])[0].miss is None


def test_a_freed_block_is_unpinned_when_its_last_copy_is_over(monkeypatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", done.append)
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: done.append("emptied"))
    staging.give_back(torch.device("cuda", 1))
    assert done == [torch.device("cuda", 1), "emptied"]


# ---- the way of reading


def read_layer(root: Path, storage: torch.Tensor | None = None) -> load.Result:
    """Load layer 0 into aligned memory, or into ``storage``, and hold it against what was published."""
    layer = device_layer(TINY)
    layer.storage = page_aligned(TINY.nbytes) if storage is None else storage
    result = load.load(root, KEY, [layer])[0]
    assert result.miss is None and bytes(layer.storage.numpy()) == bytes(filled_layer(TINY)[0].storage.numpy())
    return result


@pytest.fixture
def cold(root: Path, monkeypatch) -> Path:
    """A cache of which the kernel says that nothing is in the page cache, whatever the filesystem below."""
    monkeypatch.setattr(reads, "cached_pages", lambda descriptor: 0)
    return root


def takes_direct_reads(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_what_was_just_written_is_read_from_the_page_cache_and_what_was_dropped_is_not(root: Path) -> None:
    path = layout.payload_path(layout.folder(root, KEY), 0)
    descriptor = os.open(path, os.O_RDONLY)
    if not reads.cached_pages(descriptor) or not takes_direct_reads(path):
        pytest.skip("this kernel or filesystem cannot tell the two apart")
    assert read_layer(root).way is reads.Way.CACHED
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if reads.cached_pages(descriptor):
        pytest.skip("this filesystem keeps files nowhere but in memory")
    os.close(descriptor)
    assert read_layer(root).way is reads.Way.DIRECT
    assert read_layer(root).way is reads.Way.DIRECT  # and a direct read puts nothing there


@pytest.mark.parametrize("share", [0.0, 0.5, 0.85, 0.95, 1.0])
def test_most_of_a_file_must_be_cached(root: Path, monkeypatch, share: float) -> None:
    pages = (layout.HEAD + TINY.nbytes) / 4096
    monkeypatch.setattr(reads, "cached_pages", lambda descriptor: round(share * pages))
    assert (read_layer(root).way is reads.Way.CACHED) == (share > 0.9)


def test_a_kernel_that_cannot_tell_reads_directly(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(reads, "_CACHESTAT", 100_000)
    path = layout.payload_path(layout.folder(root, KEY), 0)
    assert (read_layer(root).way is reads.Way.DIRECT) == takes_direct_reads(path)


def test_a_real_filesystem_without_direct_io_is_read_buffered(tmp_path: Path, monkeypatch) -> None:
    """A ramfs: one of the filesystems that refuse O_DIRECT."""
    monkeypatch.setattr(reads, "cached_pages", lambda descriptor: 0)  # all that it holds is in the page cache
    source, layer = filled_layer(TINY)[0], device_layer(TINY)
    layer.storage = page_aligned(TINY.nbytes)

    def work() -> object:
        own_mounts.mount("ramfs", tmp_path)
        publish(tmp_path, KEY, source)
        result = load.load(tmp_path, KEY, [layer])[0]
        equal = bytes(layer.storage.numpy()) == bytes(source.storage.numpy())
        return (
            result.miss,
            str(result.way),
            equal,
            takes_direct_reads(layout.payload_path(layout.folder(tmp_path, KEY), 0)),
        )

    assert own_mounts.run(work) == "(None, 'buffered', True, False)"


def test_direct_reads_that_are_refused_after_opening_give_way(cold: Path, monkeypatch) -> None:
    real = os.preadv

    def refuse(descriptor, buffers, offset):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    before = len(os.listdir("/proc/self/fd"))
    assert read_layer(cold).way is reads.Way.BUFFERED
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_that_is_not_aligned_is_read_buffered(cold: Path) -> None:
    storage = page_aligned(TINY.nbytes + 4096)[64 : 64 + TINY.nbytes]
    assert read_layer(cold, storage).way is reads.Way.BUFFERED


def test_a_link_in_place_of_a_payload_is_not_followed(root: Path) -> None:
    path = layout.payload_path(layout.folder(root, KEY), 0)
    path.rename(root / "outside.w2")
    path.symlink_to(root / "outside.w2")
    result = load.load(root, KEY, [device_layer(TINY)])[0]
    assert result.miss is Miss.READ_ERROR and "symbolic links" in result.detail
