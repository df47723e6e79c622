import ctypes
import errno
import resource
from pathlib import Path

import pytest

from moet_w2 import host_memory
from moet_w2.errors import HostMemoryError
from moet_w2.host_memory import PAGE, HostAllocation, open_allocations
from moet_w2.topology import Locality

ONE_NODE = Locality(0, (0,), "the only node")
TWO_NODES = Locality(0, (0, 1), "made up")


def locked_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmLck in /proc/self/status")


def mappings() -> set[str]:
    return {line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()}


def test_locked_exactly_zeroed_and_given_back() -> None:
    before = locked_bytes()
    nbytes = 3 * PAGE + 100
    allocation = HostAllocation("layer 2", nbytes, ONE_NODE)
    tensor = allocation.tensor()
    assert (tensor.numel(), tensor.data_ptr(), tensor.data_ptr() % PAGE) == (nbytes, allocation.address, 0)
    assert not tensor.any()
    assert locked_bytes() - before == allocation.mapped_bytes == 4 * PAGE
    tensor.fill_(7)
    assert allocation.tensor().eq(7).all()  # the same bytes, not a copy
    assert sum(allocation.pages.by_node.values()) == 4 or allocation.pages.note
    assert allocation in open_allocations()
    allocation.close()
    assert locked_bytes() == before and allocation not in open_allocations()


def test_closing_twice_is_harmless_and_a_closed_one_gives_no_tensor() -> None:
    allocation = HostAllocation("layer 2", PAGE, ONE_NODE)
    allocation.close()
    allocation.close()
    with pytest.raises(HostMemoryError, match="layer 2: its host memory is closed"):
        allocation.tensor()


class FailingLibc:
    """The C library, with one call made to fail."""

    def __init__(self, real: ctypes.CDLL, broken: str, code: int) -> None:
        self._real, self._broken, self._code = real, broken, code

    def __getattr__(self, name: str):
        if name != self._broken.split(":")[0]:
            return getattr(self._real, name)
        return self._fail

    def _fail(self, *args):
        number = getattr(args[0], "value", args[0])
        if self._broken in ("syscall:mbind", "syscall:move_pages"):
            wanted = {"mbind": host_memory._SYS_MBIND, "move_pages": host_memory._SYS_MOVE_PAGES}
            if number != wanted[self._broken.split(":")[1]]:
                return self._real.syscall(*args)
        ctypes.set_errno(self._code)
        return ctypes.c_void_p(-1).value if self._broken == "mmap" else -1


@pytest.mark.parametrize(
    ("broken", "code", "locality", "remedy"),
    [
        ("mmap", errno.ENOMEM, ONE_NODE, "map fewer layers"),
        ("syscall:mbind", errno.EPERM, TWO_NODES, "SYS_NICE"),
        ("mlock", errno.ENOMEM, ONE_NODE, "memlock limit: .*ulimit -l unlimited"),
        ("syscall:move_pages", errno.ENOENT, ONE_NODE, "SYS_NICE"),
        ("syscall:move_pages", errno.EPERM, TWO_NODES, "SYS_NICE"),
    ],
)
def test_each_step_that_fails_undoes_the_ones_before(monkeypatch, broken, code, locality, remedy) -> None:
    HostAllocation("warm-up", PAGE, ONE_NODE).close()
    if locality is TWO_NODES and broken != "syscall:mbind":
        monkeypatch.setattr(HostAllocation, "_bind", lambda self: None)
    locked, maps, count = locked_bytes(), mappings(), len(open_allocations())
    monkeypatch.setattr(host_memory, "_libc", FailingLibc(host_memory._libc, broken, code))
    with pytest.raises(HostMemoryError, match=f"layer 9: 65,536 bytes .*NUMA node 0.*{remedy}"):
        HostAllocation("layer 9", 1 << 16, locality)
    assert locked_bytes() == locked and len(open_allocations()) == count
    assert not {m for m in mappings() - maps if _span(m) == 1 << 16}


def _span(mapping: str) -> int:
    first, last = (int(part, 16) for part in mapping.split("-"))
    return last - first


def test_a_kernel_that_will_not_say_is_noted_on_one_node(monkeypatch) -> None:
    monkeypatch.setattr(host_memory, "_libc", FailingLibc(host_memory._libc, "syscall:move_pages", errno.EPERM))
    allocation = HostAllocation("layer 1", PAGE, ONE_NODE)
    assert allocation.pages.by_node == {} and "one node" in allocation.pages.note
    allocation.close()


def test_pages_on_a_foreign_node_are_an_error(monkeypatch) -> None:
    locked = locked_bytes()
    monkeypatch.setattr(HostAllocation, "_bind", lambda self: None)
    foreign = Locality(1, (0, 1), "made up")
    with pytest.raises(HostMemoryError, match="belong on NUMA node 1, pages lie: 4 on 0"):
        HostAllocation("layer 3", 4 * PAGE, foreign)
    assert locked_bytes() == locked


def test_the_memlock_limit_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    monkeypatch.setattr(host_memory, "_libc", FailingLibc(host_memory._libc, "mlock", errno.ENOMEM))
    with pytest.raises(HostMemoryError, match=r"memlock limit: 65,536 bytes"):
        HostAllocation("layer 3", 1 << 20, ONE_NODE)
