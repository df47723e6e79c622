"""What lies in a cache root and in a cache: what a server wrote, and what is foreign and never touched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from . import layout

_NAMED = 5


def is_cache(directory: Path) -> bool:
    """Whether a folder is a cache that may be looked into: called by a key, with a key file, and no link."""
    return (
        layout.is_folder_name(directory.name)
        and not directory.is_symlink()
        and os.access(directory, os.R_OK | os.X_OK)
        and os.path.isfile(directory / layout.KEY_FILE)
    )


def others(root: Path) -> list[str]:
    """Names in a root that are no caches.

    Raises:
        OSError: the root cannot be read.
    """
    return sorted(path.name for path in root.iterdir() if not is_cache(path))


def own(directory: Path) -> list[Path]:
    """Files of a cache as a server writes them, in the order in which they may go.

    A sidecar goes before its payload, and the key after all of them: what an interruption leaves is a cache of fewer
    layers, each still whole.
    """
    found = [path for path in directory.iterdir() if _is_own(path)]
    rank = {layout.KEY_FILE: 2, layout.IN_USE: 3}
    return sorted(found, key=lambda path: (rank.get(path.name, path.suffix != ".json"), path.name))


def foreign(directory: Path) -> list[str]:
    """Names in a cache that no server wrote."""
    return sorted(path.name for path in directory.iterdir() if not _is_own(path))


def why_none(root: Path) -> str:
    """What a root without a cache is instead, and what to do."""
    here = Path(os.path.abspath(root))  # a name also for "."
    if is_cache(here):
        return f"{root} is itself a cache; give the folder that holds it, {here.parent}"
    found = others(root)
    if not found:
        return f"{root} holds no cache: it is empty until a server fills it"
    for name in found:
        if (root / name).is_dir() and os.access(root / name, os.R_OK) and any(map(is_cache, (root / name).iterdir())):
            return f"{root} holds no cache, but {root / name} does; give that folder"
    return f"{root} holds no cache, but {few(found)}; nothing was touched; give the folder in VLLM_MOE_W2_PLANES_CACHE"


def few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _is_own(path: Path) -> bool:
    return layout.is_file_name(path.name) and (path.is_symlink() or not path.is_dir())
