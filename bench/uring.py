"""Reads through io_uring(7), straight to the kernel: one ring, a fixed number of reads under way.

For bench/reads.py. Structures are those of Linux's include/uapi/linux/io_uring.h; x86-64 orders the loads and stores of
one thread as a ring needs them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator

_SETUP, _ENTER = 425, 426
_OP_READ, _GETEVENTS = 22, 1
_SQ_OFFSET, _SQE_OFFSET = 0, 0x10000000
_PARAMS, _SQE, _CQE = 120, 64, 16
_LIBC = ctypes.CDLL(None, use_errno=True)

Job = tuple[int, int, int, int]
"""Descriptor, address, bytes, offset in the file."""


class Ring:
    """A ring for ``depth`` reads; use as a context. Needs IORING_FEAT_SINGLE_MMAP (Linux 5.4)."""

    def __init__(self, depth: int) -> None:
        params = (ctypes.c_uint32 * (_PARAMS // 4))()
        self._file = _call(_SETUP, depth, ctypes.byref(params))
        sq_entries, cq_entries = params[0], params[1]
        self._sq = params[10:17]  # head, tail, ring_mask, ring_entries, flags, dropped, array
        self._cq = params[20:26]  # head, tail, ring_mask, ring_entries, overflow, cqes
        size = max(self._sq[6] + 4 * sq_entries, self._cq[5] + _CQE * cq_entries)
        self._rings = mmap.mmap(self._file, size, offset=_SQ_OFFSET)
        self._sqes = mmap.mmap(self._file, _SQE * sq_entries, offset=_SQE_OFFSET)

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *exception: object) -> None:
        self._sqes.close()
        self._rings.close()
        os.close(self._file)

    def read(self, jobs: Iterator[Job], depth: int) -> None:
        """Do all jobs, ``depth`` at a time.

        Raises:
            OSError: a read failed or ended early.
        """
        under_way: dict[int, int] = {}
        number = 0
        while True:
            new = 0
            while len(under_way) < depth and (job := next(jobs, None)) is not None:
                number, new = number + 1, new + 1
                under_way[number] = job[2]
                self._push(job, number)
            if not under_way:
                return
            _call(_ENTER, self._file, new, 1, _GETEVENTS, None, 0)
            for key, result in self._finished():
                if result != under_way.pop(key):
                    raise OSError(-result if result < 0 else 0, f"a read ended early with {result}")

    def _push(self, job: Job, key: int) -> None:
        descriptor, address, nbytes, offset = job
        tail, mask = self._word(self._sq[1]), self._word(self._sq[2])
        index = tail & mask
        struct.pack_into("<BBHiQQIIQQQQ", self._sqes, index * _SQE, _OP_READ, 0, 0, descriptor, offset, address,
                         nbytes, 0, key, 0, 0, 0)  # fmt: skip
        struct.pack_into("<I", self._rings, self._sq[6] + 4 * index, index)
        struct.pack_into("<I", self._rings, self._sq[1], tail + 1 & 0xFFFFFFFF)

    def _finished(self) -> Iterator[tuple[int, int]]:
        head, mask = self._word(self._cq[0]), self._word(self._cq[2])
        while head != self._word(self._cq[1]):
            key, result, _ = struct.unpack_from("<QiI", self._rings, self._cq[5] + _CQE * (head & mask))
            head = head + 1 & 0xFFFFFFFF
            struct.pack_into("<I", self._rings, self._cq[0], head)
            yield key, result

    def _word(self, offset: int) -> int:
        return struct.unpack_from("<I", self._rings, offset)[0]


def _call(number: int, *arguments: object) -> int:
    result = _LIBC.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
