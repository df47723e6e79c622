"""One payload file, read by position into memory that is there already.

Three ways, chosen for each file:

    cached     most of it is in the page cache, as after it was written: reading it there is the fastest
    direct     past the page cache, which at this size would only push out what the machine needs
    buffered   where the filesystem takes no direct reads, or the destination is not aligned
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Self

from ..linux import PAGE
from . import layout

Progress = Callable[[int], None]
CHUNK = 16 << 20
"""Bytes of one read: long enough for a disk's full rate, short enough that a ring of a few stays small."""
_MOSTLY = 0.9
_CACHESTAT = 451  # system call number, the same on every architecture; since Linux 6.5


class Way(StrEnum):
    """How a file is read."""

    CACHED = "cached"
    DIRECT = "direct"
    BUFFERED = "buffered"


class Payload:
    """An open payload file; use as a context.

    Attributes:
        head: the first :data:`layout.HEAD` bytes.
        way: how the rest is read.
    """

    def __init__(self, path: Path, aligned: bool) -> None:
        """Open, read the head and choose the way.

        Args:
            path: the file; a symbolic link is refused.
            aligned: whether :func:`alignable` holds for everything that will be read.

        Raises:
            OSError: it cannot be opened or read, or is shorter than its head.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self.head = self._read_head()
            if is_cached(self._descriptor):
                self.way = Way.CACHED
            else:
                self.way = Way.DIRECT if aligned and self._turn_direct() else Way.BUFFERED
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def read(self, view: memoryview, offset: int, progress: Progress = lambda nbytes: None) -> None:
        """Fill ``view`` with the payload from ``offset`` on.

        Raises:
            OSError: the file cannot be read, or ends early.
        """
        read_exactly(self._descriptor, view, layout.HEAD + offset, progress)

    def _read_head(self) -> bytes:
        page = mmap.mmap(-1, layout.HEAD)  # aligned, as a direct read wants it
        read_exactly(self._descriptor, memoryview(page), 0)
        return page[:]

    def _turn_direct(self) -> bool:
        """Whether direct reads work; a filesystem without them refuses either the flag or the first read."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            self._read_head()
        except OSError:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)
            return False
        return True


def alignable(address: int, nbytes: int) -> bool:
    """Whether direct reads can fill a range of memory."""
    return address % PAGE == 0 and nbytes % PAGE == 0


def is_cached(descriptor: int) -> bool:
    """Whether most of a file is in the page cache; False where the kernel cannot tell."""
    pages = cached_pages(descriptor)
    return pages is not None and pages >= _MOSTLY * os.fstat(descriptor).st_size / PAGE


def cached_pages(descriptor: int) -> int | None:
    """Pages of a file in the page cache, by cachestat(2); None where the kernel has no such call."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    refused = ctypes.CDLL(None).syscall(_CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(found), 0)
    return None if refused else found[0]


def read_exactly(descriptor: int, view: memoryview, offset: int, progress: Progress = lambda nbytes: None) -> None:
    """Fill ``view`` from a file's ``offset``; positional, so threads may share a descriptor, and without the GIL.

    Raises:
        OSError: the file cannot be read, or ends early.
    """
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise OSError(errno.ENODATA, f"ends {len(view) - done} bytes early")
        done += count
        progress(count)
