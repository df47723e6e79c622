"""What `cuda-native` needs, looked for one by one, as rows of a table."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import native_source
import pins as pin_table
from build_errors import BuildError

GCC_MINIMUM = 13  # C++20 <format> in DeepGEMM's host code; the source's CMakeLists.txt refuses older ones
LS_REMOTE_S = 20


@dataclass(frozen=True)
class Row:
    """One need. `stage` is when it counts: configure, compile, or optional."""

    name: str
    wanted: str
    found: str
    ok: bool
    remedy: str
    stage: str = "compile"


def output(*command: str, cwd: Path | None = None) -> str | None:
    """Standard output of a command; None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_nvcc() -> Path | None:
    """The compiler: under $CUDA_HOME, on PATH, or in CUDA's usual place, in this order."""
    homes = [Path(os.environ["CUDA_HOME"])] if os.environ.get("CUDA_HOME") else []
    on_path = shutil.which("nvcc")
    candidates = [home / "bin" / "nvcc" for home in homes] + ([Path(on_path)] if on_path else [])
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((path for path in candidates if path.is_file()), None)


def cuda_home(nvcc: Path) -> Path:
    """Toolkit folder of a compiler, also when the one on PATH is a wrapper script elsewhere."""
    for place in (nvcc.resolve(), Path("/usr/local/cuda/bin/nvcc")):
        if (place.parents[1] / "include" / "cuda.h").is_file():
            return place.parents[1]
    return nvcc.parent.parent


def nvcc_row(pins: pin_table.Pins) -> Row:
    pinned = pins.get("cuda.compiler")
    remedy = f"install CUDA compiler {pinned} and set CUDA_HOME to its folder"
    nvcc = find_nvcc()
    if nvcc is None:
        return Row("nvcc", pinned, "not found", False, remedy, "configure")
    version = re.search(r"V(\d+(?:\.\d+)+)", output(str(nvcc), "--version") or "")
    found = version[1] if version else "no version"
    return Row("nvcc", pinned, f"{found} ({nvcc})", found == pinned, remedy, "configure")


def arch_row(pins: pin_table.Pins) -> Row:
    arch = pins.get("cuda.arch")
    code = "sm_" + re.sub(r"[^0-9]", "", arch)
    nvcc = find_nvcc()
    codes = (output(str(nvcc), "--list-gpu-code") or "").split() if nvcc else []
    return Row("GPU target", arch, code if code in codes else "none", code in codes, "use the pinned nvcc", "configure")


def gcc_row() -> Row:
    compiler = os.environ.get("CXX", "g++")
    version = output(compiler, "-dumpfullversion") or "not found"
    good = version.split(".")[0].isdigit() and int(version.split(".")[0]) >= GCC_MINIMUM
    remedy = f"install g++ {GCC_MINIMUM} or newer, or set CXX to it"
    return Row("C++ compiler", f"g++ >= {GCC_MINIMUM}", f"{compiler} {version}", good, remedy)


def torch_row(pins: pin_table.Pins, python: Path) -> Row:
    pinned = pins.get("torch.cuda.version")
    found = output(str(python), "-c", "import torch; print(torch.__version__, torch.version.cuda)") or "none"
    version, _, cuda = found.partition(" ")
    good = version.partition("+")[0] == pinned and cuda not in ("", "None")
    return Row("torch for CUDA", pinned, found, good, "run scripts/build-native.sh cuda", "configure")


def cmake_row(pins: pin_table.Pins, python: Path) -> Row:
    pinned = pins.get("packages.cuda.cmake")
    found = (output(str(python.parent / "cmake"), "--version") or "none").splitlines()[0].removeprefix("cmake version ")
    return Row("cmake", pinned, found, found == pinned, "run scripts/build-native.sh cuda", "configure")


def rust_row(channel: str) -> Row:
    version = (output("cargo", f"+{channel}", "--version") or output("cargo", "--version") or "not found").split()
    found = version[1] if len(version) > 1 else "not found"
    good = found.startswith(channel)
    return Row("cargo", channel, found, good, "without it the optional Rust front end is left out", "optional")


def pins_row(pins: pin_table.Pins, sources: list[native_source.GitSource]) -> Row:
    """Whether what CMake would fetch is what pins.toml names. Nothing is configured where it is not."""
    wrong = native_source.differences(pins, sources)
    found = wrong[0] + (f" (and {len(wrong) - 1} more)" if wrong[1:] else "") if wrong else "as pinned"
    remedy = "look at what the source changed, then write it into [cmake_sources] of pins.toml"
    return Row("git sources", f"{len(pins.get('cmake_sources')) + 1} pinned", found, not wrong, remedy, "configure")


def source_rows(sources: list[native_source.GitSource]) -> list[Row]:
    """Whether each repository that CMake fetches is at hand or can be reached. Asks all at once."""
    with ThreadPoolExecutor(max_workers=len(sources) or 1) as pool:
        return list(pool.map(source_row, sources))


def source_row(source: native_source.GitSource) -> Row:
    wanted = source.revision[:12]
    remedy = f"make {source.repository} reachable, or set {source.override} to a copy at {source.revision}"
    if local := os.environ.get(source.override):
        state, good = local_copy(Path(local), source.revision)
        return Row(source.name, wanted, f"{source.override}={local}: {state}", good, remedy)
    problem = unreachable(source.repository)
    return Row(source.name, wanted, problem or "reachable", problem is None, remedy)


def local_copy(folder: Path, revision: str) -> tuple[str, bool]:
    """What can be said of a copy that a variable names, and whether it will do. One without git is taken as it is."""
    if not folder.is_dir():
        return "no folder", False
    if not (folder / ".git").exists():
        return "revision not compared, since it is no checkout", True
    head, wanted = (output("git", "-C", str(folder), "rev-parse", name) for name in ("HEAD", f"{revision}^{{commit}}"))
    return ("at the revision", True) if head == wanted else (f"at {head}", False)


def unreachable(repository: str) -> str | None:
    """None if git can read the repository, or the last line of why not."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "ls-remote", "--quiet", repository, "HEAD"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LS_REMOTE_S)
    except subprocess.TimeoutExpired:
        return f"no answer in {LS_REMOTE_S} s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["git failed"])[-1].split(": ", 2)[-1]


def require(rows: list[Row], stage: str) -> None:
    """Raise BuildError (missing) that names the first row of a stage that is not met."""
    for row in rows:
        if row.stage == stage and not row.ok:
            raise BuildError(f"{row.name}: wanted {row.wanted}, found {row.found}; {row.remedy}", 3)


def table(rows: list[Row]) -> str:
    """The rows for a person, the missing ones with their remedy below."""
    widths = [max(len(text) for text in column) for column in zip(*[(r.name, r.wanted) for r in rows], strict=True)]
    lines = []
    for row in rows:
        state = "ok" if row.ok else ("left out" if row.stage == "optional" else "MISSING")
        lines.append(f"{row.name:{widths[0]}}  {row.wanted:{widths[1]}}  {state:8}  {row.found}")
    missing = [f"{row.name}: {row.remedy}" for row in rows if not row.ok]
    return "\n".join([*lines, "", *missing] if missing else lines)
