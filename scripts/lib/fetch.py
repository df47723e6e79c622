"""Downloads of pinned files: verified, resumable, atomic.

A file appears under its own name only after its sha256 has matched. While it grows it is called
`<name>.part`; an interrupted transfer goes on from there with an HTTP range request. A complete file
of the wrong content is deleted and reported, never used.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from build_errors import BuildError
from pins import Artifact

CHUNK = 1 << 20
ATTEMPTS = 4
TIMEOUT_S = 60.0


def cache_dir() -> Path:
    """Folder of downloads: $XDG_CACHE_HOME/moet/downloads, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "moet" / "downloads"


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_verified(artifact: Artifact, folder: Path) -> bool:
    """Whether the folder has the file with the pinned content. Reads the whole file."""
    path = folder / artifact.filename
    return path.is_file() and sha256_of(path) == artifact.sha256


def fetch(artifact: Artifact, folder: Path, *, pause_s: float = 1.0) -> Path:
    """Return the verified file, downloading it if the folder has no good copy.

    Raises BuildError if the content does not match the pin, or the address cannot be read after
    ATTEMPTS tries (what was received stays as `.part` for the next call).
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / artifact.filename
    if target.exists():
        if sha256_of(target) == artifact.sha256:
            return target
        print(f"fetch: {target} does not match its pin; downloading it again", file=sys.stderr)
        target.unlink()
    part = folder / f"{artifact.filename}.part"
    _with_retries(lambda: _continue(artifact.url, part), artifact, part, pause_s)
    actual = sha256_of(part)
    if actual != artifact.sha256:
        part.unlink()
        raise BuildError(f"{artifact.url}: sha256 is {actual}, pins.toml says {artifact.sha256}; the file was deleted")
    _publish(part, target)
    return target


def adopt(candidate: Path, artifact: Artifact, folder: Path) -> bool:
    """Move a file that came another way into the folder if it is the pinned one."""
    if not candidate.is_file() or sha256_of(candidate) != artifact.sha256:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    _publish(candidate, folder / artifact.filename)
    return True


def _publish(part: Path, target: Path) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)


def _with_retries(step: Callable[[], None], artifact: Artifact, part: Path, pause_s: float) -> None:
    last: Exception | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause_s * 2 ** (attempt - 1))
        try:
            step()
            return
        except urllib.error.HTTPError as error:
            last = error
            if error.code in (400, 401, 403, 404, 410):
                break
        except (urllib.error.URLError, OSError) as error:
            last = error
    have = part.stat().st_size if part.exists() else 0
    raise BuildError(
        f"cannot download {artifact.url}: {last}; {have} bytes are kept in {part}; "
        f"run the same command again, or put the file at {part.with_suffix('')}"
    )


def _continue(url: str, part: Path) -> None:
    """Append the rest of the file to `part`. A short read raises OSError so that it is tried again."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send, or the part is longer than the file
            error.close()
            if _total_from(error.headers.get("Content-Range")) != have:
                part.unlink()
                raise OSError(f"{part.name} is longer than the file; starting again") from None
            return
        raise
    with response:
        resumed = have > 0 and response.status == 206
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
        if length is not None and part.stat().st_size != start + int(length):
            raise OSError(f"connection closed after {part.stat().st_size} of {start + int(length)} bytes")


def _total_from(content_range: str | None) -> int | None:
    """Total size out of `bytes */N`."""
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdigit() else None
