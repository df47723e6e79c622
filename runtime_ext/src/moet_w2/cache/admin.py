"""What ``moet cache`` does: list, verify, prune, export."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import W2Config
from ..errors import CacheError
from . import contents, layout
from .key import CacheKey

_CHUNK = 16 << 20
_REMOVED = "cache {} is being removed; start again when that is done"


@dataclass(frozen=True)
class Entry:
    """One cache folder.

    Attributes:
        directory: the folder.
        key: its key, spelled out.
        layers: layers with a payload and a sidecar.
        nbytes: bytes of all files.
        used_unix: when a server last opened it.
        in_use: whether one has it open now.
    """

    directory: Path
    key: dict[str, Any]
    layers: tuple[int, ...]
    nbytes: int
    used_unix: float
    in_use: bool


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Mark a folder as in use for as long as the context lasts, or the process lives: a lock dies with it.

    Raises:
        CacheError: the folder is being pruned.
    """
    file = _open_lock(directory)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CacheError(_REMOVED.format(directory)) from None
        if not os.fstat(file).st_nlink:  # removed between the two calls above
            raise CacheError(_REMOVED.format(directory))
        os.utime(file)
        yield
    finally:
        os.close(file)


def entries(root: Path) -> list[Entry]:
    """Every cache folder below a root, the one used last first.

    Raises:
        CacheError: the root is no folder, or cannot be read.
    """
    if not os.path.isdir(root):
        what = "is no folder" if os.path.lexists(root) else "does not exist"
        raise CacheError(f"cache folder {root} {what}; give the folder in VLLM_MOE_W2_PLANES_CACHE")
    try:
        found = [_entry(path) for path in root.iterdir() if contents.is_cache(path)]
    except OSError as error:
        raise CacheError(f"cache folder {root} cannot be read ({error.strerror}); ask as who may read it") from None
    return sorted(found, key=lambda entry: entry.used_unix, reverse=True)


def find(root: Path, name: str) -> Entry:
    """The one folder whose name begins with ``name``.

    Raises:
        CacheError: none or several do, or it is no cache.
    """
    found = entries(root)
    if not found:
        raise CacheError(contents.why_none(root))
    matching = [entry for entry in found if entry.directory.name.startswith(name)]
    if not matching and name in contents.others(root):
        raise CacheError(f"{root / name} is no cache, and was not touched; moet cache ls names those that are")
    if len(matching) != 1:
        raise CacheError(f"{len(matching)} caches below {root} begin with {name!r}; moet cache ls names them")
    return matching[0]


def other_keys(root: Path, key: CacheKey) -> dict[Path, list[str]]:
    """Cache folders of other keys, the one used last first, each with how its key differs."""
    return {
        entry.directory: [
            f"{name} {_short(entry.key.get(name))}, here {_short(value)}"
            for name, value in key.document.items()
            if entry.key.get(name) != value
        ]
        for entry in entries(root)
        if entry.directory.name != layout.folder(root, key).name
    }


def verify(entry: Entry, progress: Callable[[int], None] = lambda nbytes: None) -> list[str]:
    """Read every payload and hold it against its head and its sidecar; one line for each that is wrong.

    Args:
        entry: the cache.
        progress: told of every read, in bytes; called from several threads.
    """

    def check(layer: int) -> str | None:
        path = layout.payload_path(entry.directory, layer)
        try:
            sidecar = layout.Sidecar.from_json(layout.sidecar_path(entry.directory, layer).read_text())
            found = _verify_payload(path, sidecar, progress)
        except (OSError, ValueError) as error:
            found = f"cannot be verified ({error})"
        return f"{path}: {found}" if found else None

    with ThreadPoolExecutor(W2Config.load_workers) as threads:
        return [problem for problem in threads.map(check, layout.layers_in(entry.directory)) if problem]


def prune(entry: Entry) -> None:
    """Remove a folder that no server uses, and that holds nothing but what servers write.

    Raises:
        CacheError: it is in use, holds something foreign, or cannot be removed; what is foreign is never touched.
    """
    directory = entry.directory
    try:
        if strangers := contents.foreign(directory):
            raise CacheError(
                f"cache {directory} also holds {contents.few(strangers)}, which no server wrote; nothing was removed; "
                "move that away first"
            )
        file = _open_lock(directory)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in contents.own(directory):
                path.unlink()
            directory.rmdir()
        finally:
            os.close(file)
    except BlockingIOError:
        raise CacheError(f"cache {directory} is in use by a running server; stop it first") from None
    except OSError as error:
        raise CacheError(f"cache {directory} cannot be removed ({error}); mend that and prune again") from None


def export(entry: Entry, target: Path, progress: Callable[[int], None] = lambda nbytes: None) -> Path:
    """Copy a folder to another root, whole or not at all, without what is foreign in it; the copy.

    Args:
        entry: the cache.
        target: the other root.
        progress: see :func:`verify`, which comes first.

    Raises:
        CacheError: something stands in the way, or the cache does not verify.
    """
    destination = target / entry.directory.name
    if os.path.lexists(destination):
        raise CacheError(f"{destination} exists; remove it or export elsewhere")
    if os.path.lexists(target) and not os.path.isdir(target):
        raise CacheError(f"{target} is no folder; export elsewhere")
    if problems := verify(entry, progress):
        raise CacheError(f"not exported: {problems[0]}")
    staging = target / f"{layout.TEMPORARY}{entry.directory.name}-{os.getpid()}"
    try:
        shutil.copytree(entry.directory, staging, ignore=_not_exported)
        staging.rename(destination)
    except OSError as error:
        raise CacheError(f"not exported to {target} ({error}); export elsewhere") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return destination


def _not_exported(directory: str, names: list[str]) -> list[str]:
    """Of a cache's names, those that stay: what is foreign, being written, or says that it is in use."""
    kept = {path.name for path in contents.own(Path(directory))} - {layout.IN_USE}
    return [name for name in names if name not in kept or name.startswith(layout.TEMPORARY)]


def _entry(directory: Path) -> Entry:
    try:
        key = json.loads((directory / layout.KEY_FILE).read_text())
    except (OSError, ValueError):
        key = {}
    if not isinstance(key, dict):
        key = {}
    layers = tuple(n for n in layout.layers_in(directory) if layout.sidecar_path(directory, n).is_file())
    lock = directory / layout.IN_USE
    return Entry(
        directory,
        key,
        layers,
        sum(path.lstat().st_size for path in directory.iterdir()),
        lock.stat().st_mtime if lock.exists() else directory.stat().st_mtime,
        _is_held(directory),
    )


def _is_held(directory: Path) -> bool:
    if not (directory / layout.IN_USE).exists():
        return False
    file = os.open(directory / layout.IN_USE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _open_lock(directory: Path) -> int:
    return os.open(directory / layout.IN_USE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _verify_payload(path: Path, sidecar: layout.Sidecar, progress: Callable[[int], None]) -> str | None:
    with path.open("rb") as file:
        if not layout.head_is(file.read(layout.HEAD), sidecar.key, sidecar.layer, sidecar.nbytes):
            return "its head block is not the one that was written"
        digest, count = hashlib.sha256(), 0
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            count += len(chunk)
            progress(len(chunk))
    if count != sidecar.nbytes:
        return f"holds {count:,} bytes, its sidecar vouches for {sidecar.nbytes:,}"
    if digest.hexdigest() != sidecar.sha256:
        return "its bytes are not the ones that its sidecar vouches for"
    return None


def _short(value: Any) -> str:
    """A value of a key; a digest by its beginning."""
    return str(value)[:12]


def age(unix: float) -> str:
    """How long ago, for a person."""
    seconds = max(0, time.time() - unix)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
