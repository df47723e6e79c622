"""The few Linux calls that host memory needs, straight to the kernel through ctypes.

libnuma would add a library that is not on every machine for three system calls that need no state of its
own, and it hides the errno that tells a missing permission from missing memory. Every function raises
``OSError`` with that errno.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter

PAGE = os.sysconf("SC_PAGESIZE")
HUGE_PAGE = 2 << 20

_PROT_READ_WRITE = 0x1 | 0x2
_MAP_PRIVATE_ANONYMOUS = 0x02 | 0x20
_MADV_HUGEPAGE = 14
_MPOL_BIND = 2
_MPOL_MF_STRICT_MOVE = 0x1 | 0x2
_SYS_MBIND, _SYS_MOVE_PAGES = {"x86_64": (237, 279), "aarch64": (235, 239)}.get(os.uname().machine, (-1, -1))
_MOVE_PAGES_BATCH = 1 << 16
_MAX_NODES = 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
for _name in ("munmap", "mlock", "munlock"):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.syscall.restype = ctypes.c_long


def reserve(nbytes: int) -> int:
    """Map ``nbytes`` of private anonymous memory; the address."""
    address = _libc.mmap(None, nbytes, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise _error()
    return address


def release(address: int, nbytes: int) -> None:
    """Undo :func:`reserve`, wholly or for a part."""
    _check(_libc.munmap(address, nbytes))


def advise_huge(address: int, nbytes: int) -> None:
    """Ask for transparent huge pages; the kernel may still decline them page by page."""
    _check(_libc.madvise(address, nbytes, _MADV_HUGEPAGE))


def bind(address: int, nbytes: int, node: int) -> None:
    """Let the range's pages come from one NUMA node only. The policy belongs to the range, not to the process."""
    words = (ctypes.c_ulong * (_MAX_NODES // 64))()
    words[node // 64] = 1 << node % 64
    # The kernel reads one bit less than the count it is given.
    bits = ctypes.c_ulong(_MAX_NODES + 1)
    start, length = ctypes.c_void_p(address), ctypes.c_ulong(nbytes)
    _check(_libc.syscall(_SYS_MBIND, start, length, _MPOL_BIND, words, bits, _MPOL_MF_STRICT_MOVE))


def lock(address: int, nbytes: int) -> None:
    """Keep the range in memory; counts against the memlock limit."""
    _check(_libc.mlock(address, nbytes))


def unlock(address: int, nbytes: int) -> None:
    """Undo :func:`lock`."""
    _check(_libc.munlock(address, nbytes))


def zero(address: int, nbytes: int) -> None:
    """Write zeros; ctypes lets other threads run meanwhile."""
    _libc.memset(ctypes.c_void_p(address), 0, ctypes.c_size_t(nbytes))


def page_nodes(address: int, nbytes: int) -> dict[int, int]:
    """Where the range's pages lie: node -> number of base pages; a negative key is an errno.

    The status of every page is asked for: a huge page counts once for each base page in it.
    """
    nodes: Counter[int] = Counter()
    end = address + nbytes
    while address < end:
        count = min(_MOVE_PAGES_BATCH, (end - address) // PAGE)
        pages = (ctypes.c_void_p * count)(*range(address, address + count * PAGE, PAGE))
        status = (ctypes.c_int * count)()
        _check(_libc.syscall(_SYS_MOVE_PAGES, 0, ctypes.c_ulong(count), pages, None, status, 0))
        nodes.update(status)
        address += count * PAGE
    return dict(nodes)


def _check(result: int) -> None:
    if result:
        raise _error()


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
