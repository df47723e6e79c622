"""Builds the wheel of runtime_ext/ and unpacks it: build_extension.py PROJECT DIST SITE REVISION.

The build backend is asked as pip would ask it (PEP 517). The unpacked copy gets revision.json in its dist-info, and a
line for it in RECORD; REVISION is that file's text. Equal inputs give equal bytes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import sys
import zipfile
from pathlib import Path

ZIP_EPOCH = "315532800"  # 1980-01-01, the first date a zip can hold


def build(project: Path, dist: Path) -> Path:
    """Build the wheel into `dist` and return it."""
    os.environ["SOURCE_DATE_EPOCH"] = ZIP_EPOCH
    dist.mkdir(parents=True)
    dist = dist.resolve()
    os.chdir(project)
    from setuptools import build_meta

    with contextlib.redirect_stdout(io.StringIO()):  # a line for each file
        return dist / build_meta.build_wheel(str(dist))


def install(wheel: Path, site: Path, revision: str) -> None:
    """Unpack a pure wheel into `site` and add the revision. Raises ValueError if it is not pure."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (info,) = site.glob("*.dist-info")
    if "Root-Is-Purelib: true" not in (info / "WHEEL").read_text():
        raise ValueError(f"{wheel.name} is not a pure wheel; unpacking does not install it")
    data = (revision + "\n").encode()
    (info / "revision.json").write_bytes(data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    with (info / "RECORD").open("a") as record:
        record.write(f"{info.name}/revision.json,sha256={digest},{len(data)}\n")


def main(project: str, dist: str, site: str, revision: str) -> None:
    place = Path(site)
    place.mkdir(parents=True)
    place = place.resolve()
    install(build(Path(project), Path(dist)), place, revision)


if __name__ == "__main__":
    main(*sys.argv[1:])
