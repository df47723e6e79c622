"""Cuts the files of an offline bundle into parts, and puts them together again. Both go on where they were cut short.

Writing: a part that is there with the right content is kept. Reading: a part is hashed while it is written into the
files, and noted in a journal once it was right and its bytes are on the disk; a second run starts behind the noted
ones. A file gets its own name only after its sha256 has matched; until then it is `<name>.part`.

Only the standard library and modules of this kind are imported: install.pyz carries this one too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from build_errors import MISSING, BuildError
from offline_manifest import NAME, Manifest, Piece, part_name

CHUNK = 4 << 20
JOURNAL = "journal"
Note = Callable[[str], None]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cut(files: list[tuple[str, Path]], out: Path, part_bytes: int, note: Note) -> tuple[list[Piece], list[Piece]]:
    """Write the parts of `files` (name in the bundle, where it lies now) below `out`. Returns the files and the parts.

    Raises BuildError if there is too little room, or a file changes meanwhile.
    """
    out.mkdir(parents=True, exist_ok=True)
    pieces = [Piece(name, path.stat().st_size, sha256_of(path)) for name, path in files]
    total = sum(piece.bytes for piece in pieces)
    there = sum(path.stat().st_size for path in out.glob("part-*"))
    require_room(out, total - there)
    parts = []
    for index, start in enumerate(range(0, total, part_bytes)):
        size = min(part_bytes, total - start)
        path = out / part_name(index)
        digest = hashlib.sha256()
        for chunk in _stretch(files, pieces, start, size):
            digest.update(chunk)
        parts.append(Piece(path.name, size, digest.hexdigest()))
        if path.is_file() and path.stat().st_size == size and sha256_of(path) == parts[-1].sha256:
            note(f"{path.name} is there already")
            continue
        _write(path, _stretch(files, pieces, start, size))
        if sha256_of(path) != parts[-1].sha256:
            raise BuildError(f"{path} is not what was written to it; look at the disk, then run the same command again")
        note(f"wrote {path.name} ({size:,} bytes)")
    for stale in set(out.glob("part-*")) - {out / part.name for part in parts}:
        stale.unlink()
    return pieces, parts


def _stretch(files: list[tuple[str, Path]], pieces: list[Piece], start: int, size: int) -> Iterator[bytes]:
    """`size` bytes of the stream from `start`."""
    offset = 0
    for (_, path), piece in zip(files, pieces, strict=True):
        inside, offset = start - offset, offset + piece.bytes
        if inside >= piece.bytes or not size:
            continue
        with path.open("rb") as file:
            file.seek(inside)
            here = min(size, piece.bytes - inside)
            start, size = start + here, size - here
            while here:
                chunk = file.read(min(CHUNK, here))
                if not chunk:
                    raise BuildError(f"{path} became shorter while it was read; run the same command again")
                here -= len(chunk)
                yield chunk


def _write(path: Path, chunks: Iterator[bytes]) -> None:
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def verify(manifest: Manifest, bundle: Path, note: Note) -> None:
    """Read every part. Raises BuildError that names the first bad one and what to do."""
    _require_sizes(manifest, bundle, range(len(manifest.parts)))
    for part in manifest.parts:
        _require_digest(manifest, bundle, part, sha256_of(bundle / part.name))
        note(f"{part.name} is right")


def join(manifest: Manifest, bundle: Path, into: Path, note: Note) -> None:
    """Put the bundle's files together below `into`, which keeps what an earlier run has done of the same bundle.

    Raises BuildError that names the first bad part, or the file, and what to do.
    """
    if _read_journal(into)[:1] != [manifest.identity]:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        _append(into, manifest.identity)
    done = set(_read_journal(into)[1:])
    open_parts = [index for index, part in enumerate(manifest.parts) if part.name not in done]
    require_room(into, sum(manifest.parts[index].bytes for index in open_parts))
    _require_sizes(manifest, bundle, open_parts)
    for index in open_parts:
        part = manifest.parts[index]
        _require_digest(manifest, bundle, part, _copy(manifest, bundle / part.name, index * manifest.part_bytes, into))
        _append(into, part.name)
        note(f"{part.name} is right")
    for file in manifest.files:
        path = into / file.name
        if path.exists():
            continue
        partial = _partial(path)
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()  # a file without a byte is in no part
        if sha256_of(partial) != file.sha256:
            shutil.rmtree(into)
            raise BuildError(f"{file.name} is not right although every part was; run the same command again")
        partial.replace(path)


def _copy(manifest: Manifest, part: Path, start: int, into: Path) -> str:
    """Write a part's bytes, which begin at `start` of the stream, into the files. Returns the sha256 of the part."""
    digest, offset = hashlib.sha256(), 0
    with part.open("rb") as source:
        left = part.stat().st_size
        for file in manifest.files:
            inside, offset = start - offset, offset + file.bytes
            if inside >= file.bytes or not left:
                continue
            path = _partial(into / file.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            here = min(left, file.bytes - inside)
            start, left = start + here, left - here
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as target:
                target.seek(inside)
                while here:
                    chunk = source.read(min(CHUNK, here))
                    if not chunk:
                        break
                    here -= len(chunk)
                    digest.update(chunk)
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
    return digest.hexdigest()


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _read_journal(into: Path) -> list[str]:
    """Identity of the bundle, then the names of the parts that are done. A last line that was cut does not count."""
    try:
        text = (into / JOURNAL).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text.split("\n")[:-1]


def _append(into: Path, line: str) -> None:
    with (into / JOURNAL).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def _require_sizes(manifest: Manifest, bundle: Path, indices: Iterator[int] | list[int] | range) -> None:
    """Raise BuildError for the first part that is missing, cut short or too long; says how many more there are."""
    bad = []
    for index in indices:
        part = manifest.parts[index]
        path = bundle / part.name
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            bad.append(f"{path} is missing")
        elif size != part.bytes:
            bad.append(f"{path} has {size:,} of {part.bytes:,} bytes")
    if bad:
        more = f" (and {len(bad) - 1} more of {len(manifest.parts)} parts)" if bad[1:] else ""
        raise BuildError(f"{bad[0]}{more}; copy it again and run the same command: what was right is kept")


def _require_digest(manifest: Manifest, bundle: Path, part: Piece, sha256: str) -> None:
    if sha256 == part.sha256:
        return
    path = bundle / part.name
    other = next((p.name for p in manifest.parts if p.sha256 == sha256), None)
    if other:
        raise BuildError(f"{path} holds the content of {other}; give the parts their own names, or copy both again")
    raise BuildError(
        f"{path} is damaged: sha256 is {sha256}, {NAME} says {part.sha256}; copy it again and run the same command: "
        "what was right is kept"
    )


def require_room(folder: Path, needed: int) -> None:
    """Raise BuildError if the file system of `folder` has not `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BuildError(f"{folder} has {free:,} bytes free, {needed:,} are needed; free some", MISSING)
