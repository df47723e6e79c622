"""The tree of a bundle: what git tracks, as an archive that is the same for the same files, and its unpacking.

Only the standard library and build_errors are imported: install.pyz carries this module.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

from build_errors import BuildError


def commit_of(root: Path) -> str:
    """Revision of the tree, with `-dirty` if tracked files differ from it. Raises BuildError outside a checkout."""
    return _git(root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()


def require_tracked(root: Path, folder: Path) -> None:
    """Raise BuildError if a file below `folder` is none that git tracks: the bundle's tree would lack it."""
    others = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", str(folder.relative_to(root)))
    if names := sorted(name for name in others.split("\0") if name):
        more = f" and {len(names) - 1} more" if names[1:] else ""
        raise BuildError(f"{names[0]}{more} would not be in the bundle: git does not track it; add or remove it")


def pack(root: Path, archive: Path) -> None:
    """Write the tracked files as they lie in the tree, without dates and owners."""
    names = sorted(name for name in _git(root, "ls-files", "-z").split("\0") if name)
    temporary = archive.with_name(f"{archive.name}.new")
    with (
        temporary.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            path = root / name
            if not os.path.lexists(path):
                continue  # deleted in the tree, not yet in a commit
            info = tarfile.TarInfo(name)
            if path.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(info)
                continue
            info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            info.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(info, file)
    temporary.replace(archive)


def unpack(archive: Path, into: Path) -> None:
    """Write the archive's files to `into`, which must not exist; it appears when everything is there.

    Raises BuildError for a name or a link that leads out of it.
    """
    if into.exists():
        raise BuildError(f"{into} exists; name a folder that does not, or run its scripts/offline-bundle.sh install")
    temporary = into.with_name(f".{into.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            _require_inside(archive, member)
            target = temporary / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                target.symlink_to(member.linkname)
                continue
            with tar.extractfile(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(member.mode)
    temporary.rename(into)


def _require_inside(archive: Path, member: tarfile.TarInfo) -> None:
    depth = 0
    link = PurePosixPath(member.name).parent / member.linkname if member.issym() else PurePosixPath(member.name)
    for part in link.parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or link.is_absolute() or not (member.isfile() or member.issym()):
            raise BuildError(f"{archive.name}: {member.name!r} leads out of the archive; copy the bundle again")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"git {arguments[0]} failed in {root}: {done.stderr.strip()}; a bundle is made in a checkout")
    return done.stdout
