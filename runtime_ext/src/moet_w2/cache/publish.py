"""Writing a layer so that a reader sees all of it or nothing, whatever happens in between.

    payload -> temporary name, fsync        a crash leaves a .tmp file, which nobody reads
    old sidecar removed, folder fsynced     a crash leaves a payload without a sidecar: not eligible
    payload renamed into place
    sidecar -> temporary name, fsync, renamed, folder fsynced

Two writers of one key write the same bytes under names of their own; whoever renames last wins nothing new.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from . import layout
from .key import CacheKey

if TYPE_CHECKING:  # the launcher imports this module, and does without torch
    from ..layer import W2Layer

_CHUNK = 32 << 20


def publish(root: Path, key: CacheKey, layer: W2Layer) -> None:
    """Write one complete layer.

    Args:
        root: the cache root; made if it is not there.
        key: the key of its bytes.
        layer: the layer, complete.

    Raises:
        OSError: it could not be written (disk full, read-only, ...). What was there before is still there, or
            the layer is not eligible; nothing half-written is.
    """
    directory = layout.make_folder(root, key)
    remove_leftovers(directory)
    if not (directory / layout.KEY_FILE).is_file():
        document = json.dumps({"digest": key.digest, "source": key.source, **key.document}, indent=2) + "\n"
        write_atomically(directory, layout.KEY_FILE, document.encode())
    payload, sidecar = layout.payload_path(directory, layer.key), layout.sidecar_path(directory, layer.key)
    nbytes = layer.geometry.nbytes
    digest = hashlib.sha256()
    with _temporary(directory, payload.name, before_rename=lambda: _retire(directory, sidecar)) as file:
        file.write(layout.head(key.digest, layer.key, nbytes))
        for chunk in _host_chunks(layer):
            digest.update(chunk)
            file.write(chunk)
    vouched = layout.Sidecar(key.digest, layer.key, nbytes, digest.hexdigest())
    write_atomically(directory, sidecar.name, vouched.to_json().encode())


def write_atomically(directory: Path, name: str, content: bytes) -> None:
    """Put a small file in place, whole and on the disk, or raise OSError and leave the old one."""
    with _temporary(directory, name) as file:
        file.write(content)


def remove_leftovers(directory: Path) -> int:
    """Delete temporary files whose writer is gone; how many."""
    removed = 0
    for path in directory.glob(f"{layout.TEMPORARY}*"):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed += 1
        except OSError:
            continue  # its writer lives, or has just renamed it, or it is not ours to delete
    return removed


def _host_chunks(layer: W2Layer) -> Iterator[memoryview]:
    if layer.storage.is_cuda:
        import torch

        # Another thread quantised the layer: what it enqueued, on whichever stream, must have run.
        torch.cuda.synchronize(layer.storage.device)
    storage = layer.storage if layer.host is None else layer.host.tensor()
    for start in range(0, storage.numel(), _CHUNK):
        yield memoryview(storage[start : start + _CHUNK].cpu().numpy())


@contextmanager
def _temporary(directory: Path, name: str, before_rename=lambda: None) -> Iterator[BinaryIO]:
    """A file that appears under ``name`` only once it is whole and on the disk."""
    path, file = _create(directory, name)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            before_rename()
            os.replace(path, directory / name)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    _sync_folder(directory)


def _create(directory: Path, name: str) -> tuple[Path, BinaryIO]:
    """A new temporary file, locked, which tells remove_leftovers that its writer lives."""
    while True:
        path = directory / f"{layout.TEMPORARY}{name}-{os.getpid()}-{os.urandom(4).hex()}"
        file = path.open("xb")
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return path, file
        file.close()  # another process took it for a leftover between the two calls above


def _retire(directory: Path, sidecar: Path) -> None:
    sidecar.unlink(missing_ok=True)
    _sync_folder(directory)


def _sync_folder(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
