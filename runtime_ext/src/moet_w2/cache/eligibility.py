"""Which layers of a cache may be read. Looks at names, sizes and sidecars, never at a payload."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from . import layout
from .key import CacheKey


class Miss(StrEnum):
    """Why a layer is built from the checkpoint instead: one word for each reason."""

    NO_FOLDER = "no-folder"
    FOREIGN_FOLDER = "foreign-folder"
    NO_PAYLOAD = "no-payload"
    NO_SIDECAR = "no-sidecar"
    NOT_A_FILE = "not-a-file"
    UNREADABLE = "unreadable"
    BROKEN_SIDECAR = "broken-sidecar"
    OTHER_KEY = "other-key"
    OTHER_LAYER = "other-layer"
    WRONG_BYTES = "wrong-bytes"
    WRONG_SIZE = "wrong-size"
    BROKEN_HEAD = "broken-head"
    """Found while loading, not here."""
    READ_ERROR = "read-error"
    """Found while loading, not here."""


def judge(root: Path, key: CacheKey, layers: Iterable[int]) -> dict[int, Miss | None]:
    """Decide for each layer.

    Args:
        root: the cache root.
        key: the key that must match.
        layers: layer keys.

    Returns:
        layer key -> None where it may be read, else the reason.
    """
    wanted = list(layers)
    directory = layout.folder(root, key)
    if directory.is_symlink():
        return dict.fromkeys(wanted, Miss.FOREIGN_FOLDER)
    try:
        names = set(os.listdir(directory))
    except FileNotFoundError:
        return dict.fromkeys(wanted, Miss.NO_FOLDER)
    except OSError:
        return dict.fromkeys(wanted, Miss.UNREADABLE)
    return {layer: _judge_layer(directory, names, key, layer) for layer in wanted}


def _judge_layer(directory: Path, names: set[str], key: CacheKey, layer: int) -> Miss | None:
    payload, sidecar = layout.payload_path(directory, layer), layout.sidecar_path(directory, layer)
    if payload.name not in names:
        return Miss.NO_PAYLOAD
    if sidecar.name not in names:
        return Miss.NO_SIDECAR
    try:
        facts = payload.lstat()
        # A link could lead out of the cache root, to bytes that nobody vouched for.
        if not (stat.S_ISREG(facts.st_mode) and stat.S_ISREG(sidecar.lstat().st_mode)):
            return Miss.NOT_A_FILE
        if not os.access(payload, os.R_OK):
            return Miss.UNREADABLE
        vouched = layout.Sidecar.from_json(sidecar.read_text())
    except ValueError:
        return Miss.BROKEN_SIDECAR
    except OSError:
        return Miss.UNREADABLE
    if vouched.key != key.digest:
        return Miss.OTHER_KEY
    if vouched.layer != layer:
        return Miss.OTHER_LAYER
    if vouched.nbytes != key.geometry.nbytes:
        return Miss.WRONG_BYTES
    if facts.st_size != layout.HEAD + key.geometry.nbytes:
        return Miss.WRONG_SIZE
    return None
