"""Gets the pinned torch wheel into the download cache.

The CPU build is on PyTorch's own index, not on PyPI. A machine without that index may still have the
file in a folder or mirror that its pip knows, so pip's own configuration is asked first; its answer counts
only if the sha256 is the pinned one. An index that cannot be reached is never left in a pip command, where it
would slow down or break the installation of everything else.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import fetch
import pins as pin_table
from build_errors import BuildError
from piprun import pip


def obtain(pins: pin_table.Pins, variant: str, pip_wheel: Path, cache: Path) -> Path:
    """Path of the verified wheel. Raises BuildError if neither way has it."""
    artifact = pins.artifact(f"torch.{variant}")
    if fetch.is_verified(artifact, cache):
        return cache / artifact.filename
    if variant == "cpu" and _from_configuration(pins, artifact, pip_wheel, cache):
        return cache / artifact.filename
    return fetch.fetch(artifact, cache)


def _from_configuration(pins: pin_table.Pins, artifact: pin_table.Artifact, pip_wheel: Path, cache: Path) -> bool:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="torch-", dir=cache) as name:
        folder = Path(name)
        wanted = f"torch=={pins.get('torch.cpu.version')}"
        options = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted]
        try:
            pip(pip_wheel, Path(sys.executable), options, quiet=True)
        except BuildError:
            return False
        return fetch.adopt(folder / artifact.filename, artifact, cache)
