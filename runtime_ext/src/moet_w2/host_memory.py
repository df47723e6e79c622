"""One page-aligned, pinned host allocation per mapped layer, and proof of where its pages lie.

Life of an allocation; each step leaves its undo behind, a failure runs the undos so far in reverse order:

    reserve       map address space, aligned to 2 MiB where it pays
      bind        on a machine with several nodes: pages may come from the GPU's node only
      touch       write zeros from threads on that node's CPUs, so that pages appear there, in parallel
      lock        mlock: never swapped, counted in VmLck
      verify      ask the kernel for every page's node
      register    on CUDA: mapped and portable; fetch the device pointer and check it
    in use        tensors and captured graphs read it; nothing of Python needs to hold it
    close         synchronise -> unregister -> unlock -> unmap

An allocation lives until :meth:`HostAllocation.close`, not until its Python object goes: the module keeps it,
because a captured graph holds a bare pointer. What is still open when the process exits is closed then.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Protocol

import torch

from . import linux
from .errors import HostMemoryError
from .topology import Locality

_TOUCH_CHUNK = 64 << 20
_FILTERED = (
    "allow the {call} system call: in a container, --security-opt seccomp= with a file of scripts/seccomp-profile.sh"
)


class Registrar(Protocol):
    """What makes host memory readable by a device; :class:`moet_w2.cuda_host.CudaRegistrar` is one."""

    def register(self, address: int, nbytes: int) -> int:
        """Make the range readable; the device's pointer to it. Raises HostMemoryError."""

    def unregister(self, address: int) -> None:
        """Wait for the device, then undo :meth:`register`."""


@dataclass(frozen=True)
class PageReport:
    """What the kernel says about an allocation's pages.

    Attributes:
        page_bytes: size of a base page.
        by_node: base pages on each node; empty where the kernel refused to say.
        note: why ``by_node`` is empty, else "".
        huge_bytes: bytes that lie in transparent huge pages.
    """

    page_bytes: int
    by_node: dict[int, int]
    note: str
    huge_bytes: int


@dataclass(frozen=True)
class Seconds:
    """How long the slow steps took."""

    touch: float
    lock: float
    register: float


class HostAllocation:
    """``nbytes`` of pinned memory on one NUMA node, zeroed, seen by torch without a copy.

    Attributes:
        label: names the allocation in errors, "layer 43".
        nbytes: exact bytes asked for.
        mapped_bytes: the same in whole pages: what is locked.
        address: host address; 0 once closed.
        device_address: the device's pointer to the same bytes, or None without a registrar.
        pages: where the pages lie.
        seconds: how long it took.
    """

    def __init__(
        self,
        label: str,
        nbytes: int,
        locality: Locality,
        registrar: Registrar | None = None,
        huge_pages: bool = True,
    ) -> None:
        """Allocate.

        Args:
            label: names the allocation in errors.
            nbytes: bytes; only the mapping is rounded up, to whole pages.
            locality: the node to lie on.
            registrar: makes it readable by a device, or None.
            huge_pages: ask for transparent huge pages where the allocation holds at least one.

        Raises:
            HostMemoryError: a step failed; the message names label, bytes, node and remedy.
        """
        self.label, self.nbytes, self.locality = label, nbytes, locality
        self.mapped_bytes = -(-nbytes // linux.PAGE) * linux.PAGE
        self.device_address: int | None = None
        with ExitStack() as undo:
            self.address = self._reserve(undo, huge_pages and nbytes >= linux.HUGE_PAGE)
            if len(locality.nodes) > 1:
                self._bind()
            touch = _timed(self._touch)
            lock = _timed(self._lock)
            undo.callback(linux.unlock, self.address, self.mapped_bytes)
            self.pages = self._verify()
            start = time.perf_counter()
            if registrar is not None:
                self.device_address = registrar.register(self.address, self.mapped_bytes)
                undo.callback(registrar.unregister, self.address)
            self.seconds = Seconds(touch, lock, time.perf_counter() - start)
            self._undo = undo.pop_all()
        _keep(self)

    def tensor(self) -> torch.Tensor:
        """uint8 ``[nbytes]`` over the allocation, on the CPU. It does not own the memory.

        Raises:
            HostMemoryError: the allocation is closed.
        """
        if not self.address:
            raise HostMemoryError(f"{self.label}: its host memory is closed already")
        return torch.frombuffer((ctypes.c_uint8 * self.nbytes).from_address(self.address), dtype=torch.uint8)

    def close(self) -> None:
        """Give the memory back, after the device is done with it; closing twice does nothing."""
        if self.address:
            del _open_allocations[self.address]
            self.address, self.device_address = 0, None
            self._undo.close()

    def _reserve(self, undo: ExitStack, huge: bool) -> int:
        slack = linux.HUGE_PAGE if huge else 0
        with self._explained("could not be reserved", "free host memory or map fewer layers"):
            start = linux.reserve(self.mapped_bytes + slack)
        address = -(-start // linux.HUGE_PAGE) * linux.HUGE_PAGE if huge else start
        before, after = address - start, slack - (address - start)
        if before:
            linux.release(start, before)
        if after:
            linux.release(address + self.mapped_bytes, after)
        undo.callback(linux.release, address, self.mapped_bytes)
        if huge:
            try:
                linux.advise_huge(address, self.mapped_bytes)
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: a kernel without transparent huge pages
                    raise
        return address

    def _bind(self) -> None:
        with self._explained("could not be bound to its node", _FILTERED.format(call="mbind")):
            linux.bind(self.address, self.mapped_bytes, self.locality.node)

    def _touch(self) -> None:
        chunks = range(self.address, self.address + self.mapped_bytes, _TOUCH_CHUNK)
        end = self.address + self.mapped_bytes
        cpus = frozenset(self.locality.cpus) & os.sched_getaffinity(0) or os.sched_getaffinity(0)
        # Only these threads move to the node's CPUs; the caller's own affinity and policy stay as they are.
        with ThreadPoolExecutor(len(cpus), initializer=os.sched_setaffinity, initargs=(0, cpus)) as threads:
            list(threads.map(lambda chunk: linux.zero(chunk, min(_TOUCH_CHUNK, end - chunk)), chunks))

    def _lock(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} bytes"
        remedy = (
            "raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity, docker run --ulimit memlock=-1) "
            "or map fewer layers"
        )
        with self._explained(f"could not be locked (memlock limit: {limit})", remedy):
            linux.lock(self.address, self.mapped_bytes)

    def _verify(self) -> PageReport:
        huge = _huge_bytes(self.address, self.mapped_bytes)
        try:
            by_node = linux.page_nodes(self.address, self.mapped_bytes)
        except OSError as error:
            if len(self.locality.nodes) == 1 and error.errno in (errno.EPERM, errno.ENOSYS):
                # Pages of a machine with one node can lie nowhere else; the audit says that it was not asked.
                return PageReport(linux.PAGE, {}, f"move_pages: {error.strerror}; the machine has one node", huge)
            with self._explained("pages could not be verified", _FILTERED.format(call="move_pages")):
                raise
        if set(by_node) != {self.locality.node}:
            found = ", ".join(
                f"{count} on node {node}" if node >= 0 else f"{count} unknown ({os.strerror(-node)})"
                for node, count in sorted(by_node.items())
            )
            raise HostMemoryError(
                f"{self.label}: {self.nbytes:,} bytes belong on NUMA node {self.locality.node}, "
                f"pages lie: {found}; free memory on that node"
            )
        return PageReport(linux.PAGE, by_node, "", huge)

    @contextmanager
    def _explained(self, what: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HostMemoryError(
                f"{self.label}: {self.nbytes:,} bytes of host memory on NUMA node {self.locality.node} {what}: "
                f"{error.strerror}; {remedy}"
            ) from None


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _huge_bytes(address: int, nbytes: int) -> int:
    """Bytes of the range in transparent huge pages, by the kernel's own count for its mappings."""
    total, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first, _, rest = line.partition(" ")
            if "-" in first:
                low, high = (int(part, 16) for part in first.split("-"))
                inside = low < address + nbytes and high > address
            elif inside and first == "AnonHugePages:":
                total += int(rest.split()[0]) * 1024
    return min(total, nbytes)


_open_allocations: dict[int, HostAllocation] = {}
_owner: int | None = None  # process id that the table and the finalizer belong to


def _keep(allocation: HostAllocation) -> None:
    """Enter an allocation in the table, and see that the table is closed when this process ends."""
    global _owner
    if _owner != os.getpid():
        # A forked child neither owns what its parent allocated nor inherits its finalizers. Finalize instead of
        # atexit, because vLLM's workers are multiprocessing children, which end without running atexit.
        _owner = os.getpid()
        _open_allocations.clear()
        Finalize(None, close_all, exitpriority=0)
    _open_allocations[allocation.address] = allocation


def open_allocations() -> tuple[HostAllocation, ...]:
    """Allocations of this process that are not closed."""
    return tuple(_open_allocations.values())


def close_all() -> None:
    """Close what is open, the latest first."""
    for allocation in reversed(open_allocations()):
        allocation.close()
