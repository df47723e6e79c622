"""The text of a recipe: strict YAML, and the recipe that it extends merged beneath it.

``extends: other.yaml`` names a recipe of the same folder. Its mappings are taken over key by key, at any depth; a
value, and a list as a whole, is replaced by what the extending file says. So a profile that differs from another in
three lines has three lines.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import RecipeError
from .recipe_errors import UniqueKeyLoader

EXTENDS = "extends"


@dataclass(frozen=True)
class Source:
    """What a recipe's files say together.

    Attributes:
        data: the merged mapping, not yet checked.
        digest: sha256 over the bytes of every file, the recipe's own first, in hex.
        files: the files, the recipe's own first.
    """

    data: dict[str, Any]
    digest: str
    files: tuple[Path, ...]


def read(path: Path) -> Source:
    """Read a recipe and everything that it extends.

    Raises:
        RecipeError: a file cannot be read, is not YAML or no mapping, or the files extend each other in a circle.
    """
    digest = hashlib.sha256()
    layers: list[dict[str, Any]] = []
    files: list[Path] = []
    following: Path | None = path
    while following is not None:
        raw = _bytes(following, files[-1] if files else None)
        digest.update(raw)
        data = _mapping(following, raw)
        files.append(following)
        following = _extended(following, data.pop(EXTENDS, None), files)
        layers.append(data)
    merged: dict[str, Any] = {}
    for data in reversed(layers):
        merged = _merge(merged, data)
    return Source(merged, digest.hexdigest(), tuple(files))


def _bytes(path: Path, extended_by: Path | None) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        if extended_by is not None:
            raise RecipeError(f"{extended_by}: extends {path.name}: {reason}; name a recipe of this folder") from None
        raise RecipeError(f"{path}: {reason}; give --recipe an existing YAML file") from None


def _mapping(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        data = yaml.load(raw, UniqueKeyLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping with keys such as name, model, w2, engine and expect")
    return data


def _extended(path: Path, name: object, files: list[Path]) -> Path | None:
    if name is None:
        return None
    if not isinstance(name, str) or name != Path(name).name:
        raise RecipeError(f"{path}: {EXTENDS} = {name!r} is not the name of a recipe in this folder, as in other.yaml")
    extended = path.with_name(name)
    if extended in files:
        circle = " -> ".join(file.name for file in (*files, extended))
        raise RecipeError(f"{path}: {EXTENDS} goes in a circle: {circle}; take one out")
    return extended


def _merge(beneath: Any, above: Any) -> Any:
    if not (isinstance(beneath, dict) and isinstance(above, dict)):
        return above
    return beneath | {key: _merge(beneath.get(key), value) for key, value in above.items()}
