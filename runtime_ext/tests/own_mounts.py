"""Filesystems of a test's own: a child process with its own mounts, which go with it."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

_NEWNS, _NEWUSER = 0x20000, 0x10000000
_PRIVATE = 1 << 18 | 1 << 14  # MS_PRIVATE, MS_REC
READ_ONLY, REMOUNT, BIND = 1, 32, 4096
_LIBC = ctypes.CDLL(None, use_errno=True)


class NotAllowed(Exception):
    """This machine lets the test make no mounts."""


def mount(kind: str, folder: Path, options: str = "", flags: int = 0) -> None:
    """Mount a new filesystem of a kind at a folder."""
    if _LIBC.mount(b"none", os.fsencode(folder), kind.encode(), ctypes.c_ulong(flags), options.encode()):
        raise NotAllowed(f"mount {kind}: {os.strerror(ctypes.get_errno())}")


def run(work: Callable[[], object]) -> str:
    """Run ``work`` in a child that may mount; the text of what it returns. Skips the test where no child may.

    The child is a fork: torch's own threads are not there, so large tensors are made by the parent.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            _separate()
            text = str(work())
        except NotAllowed as reason:
            text = f"not allowed: {reason}"
        except BaseException:
            text = traceback.format_exc()
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(pid, 0)
    if text.startswith("not allowed"):
        pytest.skip(f"this machine allows no mount namespace: {text}")
    return text


def _separate() -> None:
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEWNS | (_NEWUSER if user else 0)):
        raise NotAllowed(f"unshare: {os.strerror(ctypes.get_errno())}")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mount("", Path("/"), flags=_PRIVATE)
