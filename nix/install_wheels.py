"""Installs wheels whose files have lost their names: install_wheels.py WHEEL...

pip reads name and version of a wheel from its file's name. In the store a wheel is called after its hash, so each gets
a link of the right name first. Its tags are not needed any more: the sha256 in the lock has chosen the file. They go
where the running interpreter looks for packages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path


def file_name(wheel: Path) -> str:
    """A name under which pip installs this wheel, from its own METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    distribution = metadata["Name"].replace("-", "_").replace(".", "_")
    return f"{distribution}-{metadata['Version']}-py3-none-any.whl"


def main(*wheels: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        links = []
        for wheel in map(Path, wheels):
            links.append(Path(folder) / file_name(wheel))
            links[-1].symlink_to(wheel.resolve())
        options = ["install", "--no-deps", "--no-index", "--no-compile", "--no-cache-dir"]
        return subprocess.run([sys.executable, "-m", "pip", *options, *links]).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
