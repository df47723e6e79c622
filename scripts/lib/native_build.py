"""`cuda-native`: the pinned source archive, patched, compiled for the pinned architecture by the pinned nvcc.

It compiles with the packages of the cuda environment (torch, cmake and the other build tools are pinned
there) and ends in a wheel in .native/dist/cuda-native/ and an environment .native/venv-cuda-native. Exit
status 3: something that it needs is missing; the table says what, and what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import fetch
import native_source
import native_tools
import pins as pin_table
import venvs
import wheels
from build_errors import MISSING, OK, BuildError
from native_tools import Row
from piprun import pip

_MILESTONES = ("The CUDA compiler identification", "Found Torch", "CUDA target arch", "CUDA supported target arch")


def needs(pins: pin_table.Pins, native: Path) -> list[Row]:
    """Every row of the table. Reads the source archive, asks each git repository; builds nothing."""
    python = native / "venv-cuda" / "bin" / "python"
    artifact = pins.artifact("vllm.sdist")
    archive = fetch.fetch(artifact, fetch.cache_dir())
    rows = [
        Row("source archive", artifact.filename, "verified", True, ""),
        native_tools.torch_row(pins, python),
        native_tools.cmake_row(pins, python),
        native_tools.nvcc_row(pins),
        native_tools.arch_row(pins),
        native_tools.gcc_row(),
        native_tools.rust_row(rust_channel(pins, archive)),
    ]
    sources = native_source.git_sources(native_source.cmake_texts(pins, archive))
    return [*rows, native_tools.pins_row(pins, sources), *native_tools.source_rows(sources)]


def rust_channel(pins: pin_table.Pins, archive: Path) -> str:
    """The toolchain that the source names."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile(pins.get("vllm.sdist.root") + "/rust-toolchain.toml")
        return tomllib.loads(file.read().decode())["toolchain"]["channel"] if file else ""


def check(pins: pin_table.Pins, native: Path) -> int:
    """Print the table. Returns MISSING if anything that is not optional is."""
    rows = needs(pins, native)
    print(native_tools.table(rows))
    return OK if all(row.ok or row.stage == "optional" for row in rows) else MISSING


def build(pins: pin_table.Pins, native: Path, *, configure_only: bool) -> int:
    """Patch, configure, compile. Configuring is tried even where a git source is missing, since it proves
    the rest; what stopped it is then named."""
    rows = needs(pins, native)
    print(native_tools.table(rows), file=sys.stderr)
    native_tools.require(rows, "configure")
    tree = native_source.patched_tree(pins, native)
    print(f"build: {pins.patch_name()} applied to {tree.relative_to(native.parent)}", file=sys.stderr)
    environment = build_environment(pins, native)
    configure(tree, native, environment, rows)
    if configure_only:
        print("build: configured")
        return OK
    native_tools.require(rows, "compile")
    out = native / "dist" / "cuda-native"
    pip_wheel = fetch.fetch(pins.artifact("tools.pip"), fetch.cache_dir())
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    shutil.rmtree(out, ignore_errors=True)
    os.environ.update(environment)
    pip(pip_wheel, native / "venv-cuda" / "bin" / "python", ["wheel", *options, str(tree)])
    (wheel,) = out.glob("vllm-*.whl")
    venvs.ensure(pins, native, wheels.Built(wheel, fetch.sha256_of(wheel)), "cuda-native")
    print(f"build: .native/venv-cuda-native has {wheel.name}")
    return OK


def build_environment(pins: pin_table.Pins, native: Path) -> dict[str, str]:
    """The variables that vLLM's own setup.py and CMake files read."""
    nvcc = native_tools.find_nvcc()
    if nvcc is None:
        raise BuildError("nvcc is not found", MISSING)
    home = native_tools.cuda_home(nvcc)
    scripts = (native / "venv-cuda" / "bin").absolute()
    channel = rust_channel(pins, fetch.cache_dir() / pins.artifact("vllm.sdist").filename)
    # A rustup that lacks the source's toolchain would refuse to run at all; its default may be recent enough.
    rust = {} if native_tools.output("cargo", f"+{channel}", "--version") else {"RUSTUP_TOOLCHAIN": "stable"}
    return rust | {
        "CUDA_HOME": str(home),
        "PATH": os.pathsep.join([str(scripts), str(home / "bin"), os.environ.get("PATH", "")]),
        "TORCH_CUDA_ARCH_LIST": pins.get("cuda.arch"),
        "VLLM_TARGET_DEVICE": "cuda",
        "VLLM_VERSION_OVERRIDE": pins.our_version("cuda"),
        "VLLM_SKIP_VERSION_SUFFIX": "1",
        "MAX_JOBS": os.environ.get("MAX_JOBS", str(os.cpu_count() or 1)),
    }


def configure(tree: Path, native: Path, environment: dict[str, str], rows: list[Row]) -> None:
    """Run CMake as setup.py would. Raises BuildError that says how far it came and what stopped it."""
    folder = tree.parent / "configure"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    scripts = (native / "venv-cuda" / "bin").absolute()
    command = [str(scripts / "cmake"), str(tree), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    command += ["-DVLLM_TARGET_DEVICE=cuda", f"-DVLLM_PYTHON_EXECUTABLE={scripts / 'python'}"]
    command += [f"-DCMAKE_CUDA_COMPILER={environment['CUDA_HOME']}/bin/nvcc"]
    command += [f"-DFETCHCONTENT_BASE_DIR={tree.parent / 'deps'}"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    log = folder / "configure.log"
    log.write_text(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        if any(mark in line for mark in _MILESTONES):
            print(f"build: cmake: {line.removeprefix('-- ')}", file=sys.stderr)
    if done.returncode:
        absent = [row.name for row in rows if not row.ok and row.stage == "compile"]
        cause = f"missing here: {', '.join(absent)}" if absent else "see the log"
        where = first_error(done.stderr)
        raise BuildError(f"CMake stopped at {where}; {cause}; log: {log}", MISSING if absent else 1)


def first_error(text: str) -> str:
    """Place and first line of CMake's first error."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if line.startswith("CMake Error"):
            detail = next((later.strip() for later in lines[index + 1 :] if later.strip()), "")
            return f"{line.removeprefix('CMake Error at ').removesuffix(':')}: {detail}"
    return "an unknown place"
