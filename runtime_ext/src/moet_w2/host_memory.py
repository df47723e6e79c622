"""One page-aligned, locked host allocation per mapped layer, and proof of where its pages lie.

Life of an allocation; a failure at any step undoes the steps before it, in reverse:

    reserve (mmap) -> bind to the node (mbind) -> lock, which faults every page in (mlock)
        -> ask the kernel for each page's node (move_pages) -> in use -> close (munlock, munmap)

The calls go straight to the kernel through ctypes. libnuma would add a library that is not on every machine
for three system calls that need no state of its own, and hide the errno that names the remedy.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import resource
from collections import Counter
from dataclasses import dataclass

import torch

from .errors import HostMemoryError
from .topology import Locality

PAGE = os.sysconf("SC_PAGESIZE")

_PROT_READ_WRITE = 0x1 | 0x2
_MAP_PRIVATE_ANONYMOUS = 0x02 | 0x20
_MPOL_BIND = 2
_MPOL_MF_STRICT_MOVE = 0x1 | 0x2
_SYS_MBIND, _SYS_MOVE_PAGES = {"x86_64": (237, 279), "aarch64": (235, 239)}.get(os.uname().machine, (-1, -1))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
for _name in ("munmap", "mlock", "munlock"):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True)
class PageReport:
    """What the kernel says about an allocation's pages.

    Attributes:
        page_bytes: size of a page.
        by_node: pages on each node; empty where the kernel refused to say.
        note: why ``by_node`` is empty, else "".
    """

    page_bytes: int
    by_node: dict[int, int]
    note: str


class HostAllocation:
    """``nbytes`` of locked memory on one NUMA node, zeroed, seen by torch without a copy.

    Tensors over it do not own it: :meth:`close` ends them all. A process that forgets is closed at exit.
    """

    def __init__(self, label: str, nbytes: int, locality: Locality) -> None:
        """Allocate.

        Args:
            label: names the allocation in errors, "layer 43".
            nbytes: exact bytes; the mapping is rounded up to whole pages.
            locality: the node to lie on.

        Raises:
            HostMemoryError: a step failed; the message names label, bytes, node and remedy.
        """
        self.label, self.nbytes, self.locality = label, nbytes, locality
        self.mapped_bytes = -(-nbytes // PAGE) * PAGE
        self.address = self._reserve()
        try:
            if len(locality.nodes) > 1:
                self._bind()
            self._lock()
            self.pages = self._verify()
        except BaseException:
            _libc.munlock(self.address, self.mapped_bytes)
            _libc.munmap(self.address, self.mapped_bytes)
            self.address = 0
            raise
        _open_allocations[self.address] = self

    def tensor(self) -> torch.Tensor:
        """uint8 ``[nbytes]`` over the allocation.

        Raises:
            HostMemoryError: the allocation is closed.
        """
        if not self.address:
            raise HostMemoryError(f"{self.label}: its host memory is closed already")
        return torch.frombuffer((ctypes.c_uint8 * self.nbytes).from_address(self.address), dtype=torch.uint8)

    def close(self) -> None:
        """Unlock and return the memory; closing twice does nothing."""
        if self.address:
            _open_allocations.pop(self.address, None)
            _libc.munlock(self.address, self.mapped_bytes)
            _libc.munmap(self.address, self.mapped_bytes)
            self.address = 0

    def _reserve(self) -> int:
        address = _libc.mmap(None, self.mapped_bytes, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise self._error("could not be reserved", "free host memory or map fewer layers")
        return address

    def _bind(self) -> None:
        mask = ctypes.c_ulong(1 << self.locality.node)
        bits = ctypes.c_ulong(8 * ctypes.sizeof(mask) + 1)  # the kernel subtracts one before it reads the mask
        failed = _libc.syscall(
            _SYS_MBIND, ctypes.c_void_p(self.address), ctypes.c_ulong(self.mapped_bytes), _MPOL_BIND,
            ctypes.byref(mask), bits, _MPOL_MF_STRICT_MOVE,
        )  # fmt: skip
        if failed:
            raise self._error(
                "could not be bound to its node", "allow the mbind system call, in a container with --cap-add SYS_NICE"
            )

    def _lock(self) -> None:
        if _libc.mlock(self.address, self.mapped_bytes):
            soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} bytes"
            raise self._error(
                f"could not be locked (memlock limit: {limit})",
                "raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity, docker run --ulimit memlock=-1) "
                "or map fewer layers",
            )

    def _verify(self) -> PageReport:
        count = self.mapped_bytes // PAGE
        addresses = (ctypes.c_void_p * count)(*range(self.address, self.address + self.mapped_bytes, PAGE))
        status = (ctypes.c_int * count)()
        if _libc.syscall(_SYS_MOVE_PAGES, 0, ctypes.c_ulong(count), addresses, None, status, 0):
            code = ctypes.get_errno()
            if len(self.locality.nodes) == 1 and code in (errno.EPERM, errno.ENOSYS):
                # Pages of a machine with one node can lie nowhere else; the audit says that it was not asked.
                return PageReport(PAGE, {}, f"move_pages: {os.strerror(code)}; the machine has one node")
            raise self._error(
                "pages could not be verified",
                "allow the move_pages system call, in a container with --cap-add SYS_NICE",
            )
        by_node = Counter(status)
        if set(by_node) != {self.locality.node}:
            found = ", ".join(f"{n} on {node if node >= 0 else os.strerror(-node)}" for node, n in by_node.items())
            raise HostMemoryError(
                f"{self.label}: {self.nbytes:,} bytes belong on NUMA node {self.locality.node}, pages lie: {found}; "
                "free memory on that node"
            )
        return PageReport(PAGE, dict(by_node), "")

    def _error(self, what: str, remedy: str) -> HostMemoryError:
        reason = os.strerror(ctypes.get_errno())
        return HostMemoryError(
            f"{self.label}: {self.nbytes:,} bytes of host memory on NUMA node {self.locality.node} {what}: "
            f"{reason}; {remedy}"
        )


_open_allocations: dict[int, HostAllocation] = {}


def open_allocations() -> tuple[HostAllocation, ...]:
    """Allocations of this process that are not closed."""
    return tuple(_open_allocations.values())


@atexit.register
def _close_all() -> None:
    for allocation in open_allocations():
        allocation.close()
