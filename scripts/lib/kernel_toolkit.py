"""The CUDA tools that kernels/ needs: the pinned nvcc, and cuobjdump and nvdisasm that read what it made.

A CUDA toolkit of the pinned version is used where there is one ($CUDA_HOME, PATH, CUDA's usual place); elsewhere
the same compiler comes from its pinned wheels, unpacked below .native/cuda/. The two readers always come from
their wheels: they are small, and toolkits are often installed without them. nvcc reads sources through the host's
C++ preprocessor, so g++ must be there too.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import fetch
import native_tools
import pins as pin_table
import stamp
from build_errors import MISSING, BuildError

HOST_COMPILER = "g++"


@dataclass(frozen=True)
class Compiler:
    """The pinned nvcc. `build` is its own name for itself, the same for every copy of that compiler."""

    nvcc: Path
    version: str
    build: str


def compiler(pins: pin_table.Pins, native: Path, *, download: bool = True) -> Compiler:
    """The pinned compiler, from this machine or from its wheels.

    Raises BuildError if $CUDA_HOME names another one, if there is no host compiler, or, without `download`, if
    the wheels would have to be fetched first.
    """
    if shutil.which(HOST_COMPILER) is None:
        raise BuildError(f"{HOST_COMPILER} is not on PATH; nvcc preprocesses with it: install g++", MISSING)
    pinned = pins.get("cuda.compiler")
    nvcc = native_tools.find_nvcc()
    if nvcc is not None:
        found = identify(nvcc)
        if found is not None and found.version == pinned:
            return found
        version = found.version if found else "no version"
        if os.environ.get("CUDA_HOME") and nvcc.parent.parent == Path(os.environ["CUDA_HOME"]):
            raise BuildError(
                f"{nvcc} (from CUDA_HOME) is nvcc {version}, pins.toml wants {pinned}; set CUDA_HOME to that toolkit, "
                "or unset it to use the pinned wheels",
                MISSING,
            )
    home = unpacked(pins, "cuda.toolkit", native, download=download)
    found = identify(home / "bin" / "nvcc")
    if found is None or found.version != pinned:
        version = found.version if found else "no version"
        raise BuildError(f"the pinned wheels hold nvcc {version}, cuda.compiler in pins.toml is {pinned}")
    return found


def identify(nvcc: Path) -> Compiler | None:
    """What a compiler says that it is; None if it says nothing of the kind."""
    text = native_tools.output(str(nvcc), "--version") or ""
    version, build = re.search(r"V(\d+(?:\.\d+)+)", text), re.search(r"^Build (\S+)$", text, re.MULTILINE)
    return Compiler(nvcc, version[1], build[1]) if version and build else None


def host_version() -> str:
    """Version of the host's compiler, which preprocesses what nvcc compiles."""
    return native_tools.output(HOST_COMPILER, "-dumpfullversion") or "unknown"


def reader(pins: pin_table.Pins, native: Path, name: str) -> Path:
    """cuobjdump or nvdisasm."""
    return unpacked(pins, "cuda.readers", native) / "bin" / name


def unpacked(pins: pin_table.Pins, key: str, native: Path, *, download: bool = True) -> Path:
    """Toolkit folder made of all wheels below `key` of the pins, unpacked once for each set of them.

    Raises BuildError if a wheel cannot be had, or is not in the cache of downloads and `download` is false.
    """
    artifacts = [pins.artifact(f"{key}.{name}") for name in pins.get(key)]
    folder = native / "cuda" / f"{key.rpartition('.')[2]}-{stamp.digest([(key, pins.get(key))])[:12]}"
    if not folder.is_dir():
        absent = [a.filename for a in artifacts if not (fetch.cache_dir() / a.filename).is_file()]
        if absent and not download:
            raise BuildError(f"{', '.join(absent)} not downloaded yet; run `make kernels`", MISSING)
        wheels = [fetch.fetch(artifact, fetch.cache_dir()) for artifact in artifacts]
        _unpack(wheels, folder)
    (tools,) = folder.glob("nvidia/*/bin")
    return tools.parent


def _unpack(wheels: list[Path], folder: Path) -> None:
    """All wheels into one folder, which appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        temporary = Path(name) / "tree"
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(temporary)
        for tool in (*temporary.glob("nvidia/*/bin/*"), *temporary.glob("nvidia/*/nvvm/bin/*")):
            tool.chmod(0o755)  # zipfile drops modes
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another build was faster
                raise
