"""MANIFEST.json of an offline bundle: which files it carries, and the parts that their bytes are cut into.

The files, one behind another, are one stream; part k holds its bytes [k * part_bytes, (k + 1) * part_bytes). So a
part may hold many files or a piece of one, and equal files in equal order give equal parts.

Only the standard library and build_errors are imported: install.pyz carries this module to hosts that have nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build_errors import BuildError

NAME = "MANIFEST.json"
SCHEMA = 1
TREE = "tree.tar.gz"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# Below these folders lie the locked packages (wheels/) and what is made here (dist/).
_FILE = re.compile(r"(?:(?:wheels|dist)/)?[A-Za-z0-9][A-Za-z0-9._+-]*\Z")


@dataclass(frozen=True)
class Piece:
    """A file of the stream, or a part of it: its name, its size in bytes, the sha256 of its content."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """`inputs` are digests of what the bundle was made from; a tree that has others is not this bundle's."""

    variant: str
    python: str
    system: str
    machine: str
    commit: str  # as `git describe --always --dirty` writes it
    inputs: dict[str, str]
    part_bytes: int
    files: tuple[Piece, ...]
    parts: tuple[Piece, ...]

    @property
    def total(self) -> int:
        """Bytes of the stream."""
        return sum(file.bytes for file in self.files)

    @property
    def identity(self) -> str:
        """sha256 of everything that the manifest says."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> Path:
        """Write it in one step. It is the last file of a bundle, so that an unfinished one has none."""
        temporary = folder / f"{NAME}.new"
        content = {"schema": SCHEMA, "identity": self.identity, **asdict(self)}
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return temporary.replace(folder / NAME)


def part_name(index: int) -> str:
    return f"part-{index:04d}"


def read(folder: Path) -> Manifest:
    """The manifest of a bundle. Raises BuildError if there is none, or one that is damaged or of another schema."""
    path = folder / NAME
    again = f"copy it again from where the bundle was made, or make the bundle again if it has no {NAME} there"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise BuildError(f"{path}: schema is {content['schema']!r}, this reads {SCHEMA}; use the bundle's own tree")
        return _parse(content)
    except FileNotFoundError:
        raise BuildError(f"{path} does not exist; {again}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{path} is damaged ({type(error).__name__}: {error}); {again}") from None


def _parse(content: dict[str, Any]) -> Manifest:
    """Raises ValueError, KeyError or TypeError for anything that `write` would not have written."""
    pieces = {key: tuple(Piece(**piece) for piece in content[key]) for key in ("files", "parts")}
    plain = {key: content[key] for key in ("variant", "python", "system", "machine", "commit", "inputs", "part_bytes")}
    manifest = Manifest(**plain, **pieces)
    if manifest.identity != content["identity"]:
        raise ValueError("its content is not the one that its identity names")
    for piece in (*manifest.files, *manifest.parts):
        if not _FILE.match(piece.name) or not _SHA256.match(piece.sha256):
            raise ValueError(f"{piece.name!r} is no entry of a bundle")
    if [part.name for part in manifest.parts] != [part_name(k) for k in range(len(manifest.parts))]:
        raise ValueError("its parts are not in order")
    if sum(part.bytes for part in manifest.parts) != manifest.total:
        raise ValueError("its parts are not as long as its files")
    return manifest
