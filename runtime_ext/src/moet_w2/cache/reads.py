"""One payload file, read by position into memory that is there already.

Direct I/O is used where the filesystem takes it and the destination is aligned: it spares the page cache, which at
this size would only push out what the machine needs. The head block is read through the same descriptor as the
payload, so that both are of one file whatever happens to its name meanwhile.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from ..linux import PAGE
from . import layout

Progress = Callable[[int], None]
CHUNK = 16 << 20
"""Bytes of one read: long enough for a disk's full rate, short enough that a ring of a few stays small."""


class Payload:
    """An open payload file; use as a context.

    Attributes:
        direct: whether its reads bypass the page cache.
        head: the first :data:`layout.HEAD` bytes.
    """

    def __init__(self, path: Path, direct: bool) -> None:
        """Open and read the head.

        Args:
            path: the file; a symbolic link is refused.
            direct: try direct I/O. Its reads need page-aligned destinations and lengths in whole pages.

        Raises:
            OSError: it cannot be opened or read, or is shorter than its head.
        """
        self.direct, self._descriptor = False, -1
        if direct:
            # Filesystems without direct I/O refuse either the opening or the first read.
            with suppress(OSError):
                self._open(path, os.O_DIRECT)
                self.direct = True
        if not self.direct:
            self._open(path, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, view: memoryview, offset: int, progress: Progress = lambda nbytes: None) -> None:
        """Fill ``view`` with the payload from ``offset`` on. Several threads may read at once.

        Raises:
            OSError: the file cannot be read, or ends early.
        """
        read_exactly(self._descriptor, view, layout.HEAD + offset, progress)

    def _open(self, path: Path, flag: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flag)
        try:
            page = mmap.mmap(-1, layout.HEAD)  # aligned, as a direct read wants it
            read_exactly(self._descriptor, memoryview(page), 0)
            self.head = page[:]
        except BaseException:
            self.close()
            raise


def alignable(address: int, nbytes: int) -> bool:
    """Whether direct reads can fill a range of memory."""
    return address % PAGE == 0 and nbytes % PAGE == 0


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
