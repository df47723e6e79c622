"""Unpacks a source archive whatever the patch release of Python is (older ones lack tarfile's own filter)."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from build_errors import BuildError


def unpack(archive: Path, into: Path, prefix: str) -> None:
    """Write the archive's files below `prefix` under `into`, names kept.

    Raises BuildError for a name that would leave `into`, and for anything but files and folders: the
    pinned archives have none of either.
    """
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if member.name.startswith("/") or ".." in parts:
                raise BuildError(f"{archive.name}: {member.name!r} leads out of the archive")
            if not member.name.startswith(prefix) or member.isdir():
                continue
            source = tar.extractfile(member) if member.isfile() else None
            if source is None:
                raise BuildError(f"{archive.name}: {member.name!r} is neither a file nor a folder")
            target = into / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
