"""Checks of the software: is it what was pinned, and can the compilers that serving needs at run time do their work?"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import pinned
from .report import Check, fail, ok, skipped, warn
from .subject import CPU, CUDA, Subject, installed_variant, version_of

DEEP_GEMM_NVCC = (12, 9)
"""Oldest nvcc that vLLM's DeepGEMM accepts at run time (hooks of the pinned vLLM: it refuses to compile below)."""
_SECONDS = 60


def check_versions(subject: Subject) -> Iterator[Check]:
    """Python, vLLM and torch against the pins of the variant that is installed."""
    variant = installed_variant() or subject.kind or CUDA
    pins = pinned.load(variant)
    yield _python(pins.python)
    yield _vllm(pins.vllm, subject)
    yield _torch(pins.torch, subject)


def _python(wanted: str) -> Check:
    here = platform.python_version()
    if here.rpartition(".")[0] == wanted:
        return ok("Python", here)
    return warn(
        "Python",
        f"{here}; {wanted} is pinned and nothing was tried with another",
        f"make the environment with Python {wanted}",
    )


def _vllm(wanted: str, subject: Subject) -> Check:
    here, remedy = version_of("vllm"), "make the environment with scripts/build-native.sh"
    if here is None:
        return fail("vLLM", f"not installed beside {sys.executable}", remedy)
    if here.partition("+")[0] != wanted.partition("+")[0]:
        return fail("vLLM", f"{here}; {wanted} is pinned, and the extension attaches to that one only", remedy)
    if subject.kind == CUDA and here.endswith(".cpu"):
        return _for_cpus("vLLM", here)
    if here != wanted:
        return warn("vLLM", f"{here} lacks this distribution's patch; {wanted} is pinned", remedy)
    return ok("vLLM", here)


def _for_cpus(name: str, here: str) -> Check:
    value = f"{here} is the build for CPUs; the recipe needs a GPU"
    return fail(name, value, "use the environment of scripts/build-native.sh cuda")


def _torch(wanted: str, subject: Subject) -> Check:
    here, remedy = version_of("torch"), "make the environment with scripts/build-native.sh"
    if here is None:
        return fail("torch", "not installed", remedy)
    if here.partition("+")[0] != wanted.partition("+")[0]:
        return fail("torch", f"{here}; {wanted} is pinned and vLLM is built for it", remedy)
    if subject.kind == CUDA and here.endswith("+cpu"):
        return _for_cpus("torch", here)
    return ok("torch", here)


def check_compilers(subject: Subject) -> Iterator[Check]:
    """nvcc and the host's C++ compiler, which DeepGEMM, FlashInfer and TileLang call while the server starts.

    Proven by compiling an empty kernel for the very GPU, where there is one.
    """
    if subject.kind == CPU:
        yield skipped("nvcc", "not applicable: the recipe computes on CPUs")
        return
    if subject.kind is None and not subject.gpus:
        yield skipped("nvcc", "there is no GPU to compile for")
        return
    nvcc = find_nvcc(subject.served_environ)
    oldest = ".".join(map(str, DEEP_GEMM_NVCC))
    install = f"install the CUDA toolkit {oldest} or later and set CUDA_HOME to its folder"
    if nvcc is None:
        yield fail("nvcc", "found neither in CUDA_HOME, nor on PATH, nor in /usr/local/cuda", install)
        return
    version = nvcc_version(nvcc)
    if version is None:
        yield fail("nvcc", f"{nvcc} does not tell its version", install)
        return
    value = f"{version[0]}.{version[1]} ({nvcc})"
    if version < DEEP_GEMM_NVCC:
        yield fail("nvcc", f"{value}; DeepGEMM compiles with {oldest} or later only", install)
        return
    built = pinned.load(CUDA).cuda
    if version[0] != built[0]:
        yield warn(
            "nvcc",
            f"{value}; this distribution is built with CUDA {built[0]}.{built[1]}",
            f"set CUDA_HOME to a toolkit of CUDA {built[0]}",
        )
    else:
        yield ok("nvcc", value)
    yield _compile(nvcc, subject)
    yield _ninja(subject)


def _ninja(subject: Subject) -> Check:
    found = shutil.which("ninja", path=subject.served_environ.get("PATH"))
    if found is not None:
        return ok("ninja", found)
    if version_of("flashinfer-cubin") is not None:
        return ok("ninja", "not on PATH, and not needed: flashinfer-cubin is installed")
    missing, remedy = "not on PATH; FlashInfer builds its kernels with it", "put the environment's bin folder on PATH"
    if any(gpu.capability[0] == 12 for gpu in subject.gpus):
        return fail("ninja", f"{missing}, and this GPU has no other attention", remedy)
    return warn("ninja", missing, remedy)


def find_nvcc(environ: Mapping[str, str]) -> Path | None:
    """Where DeepGEMM and FlashInfer look: CUDA_HOME, CUDA_PATH, PATH, the usual place."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            named = Path(environ[name]) / "bin" / "nvcc"
            return named if named.is_file() else None
    found = shutil.which("nvcc", path=environ.get("PATH"))
    usual = Path("/usr/local/cuda/bin/nvcc")
    return Path(found) if found else (usual if usual.is_file() else None)


def nvcc_version(nvcc: Path) -> tuple[int, int] | None:
    """(major, minor) as the compiler says; None where it says nothing of the kind."""
    found = re.search(r"release (\d+)\.(\d+)", _output(str(nvcc), "--version") or "")
    return (int(found[1]), int(found[2])) if found else None


def _compile(nvcc: Path, subject: Subject) -> Check:
    if not subject.gpus:
        return skipped("compilation", "there is no GPU to compile for")
    major, minor = subject.gpus[0].capability
    # From capability 9 on kernels use features of exactly one architecture, which its "a" target has.
    target = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    with tempfile.TemporaryDirectory(prefix="moet-doctor-") as name:
        source = Path(name) / "empty.cu"
        source.write_text("#include <cuda_bf16.h>\n__global__ void empty() {}\n")
        words = [
            str(nvcc),
            "-std=c++20",
            f"-arch={target}",
            "-cubin",
            "-o",
            str(source.with_suffix(".cubin")),
            str(source),
        ]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, env=subject.served_environ)
        except (OSError, subprocess.TimeoutExpired) as error:
            return fail("compilation", f"{nvcc} does not end ({error})", "run it by hand to see why")
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no message"]
        line = next((text for text in lines if "error" in text.lower()), lines[-1])
        return fail(
            "compilation",
            f"an empty kernel for {target} does not compile: {line}",
            "install a g++ that this nvcc accepts, or a toolkit that knows the GPU",
        )
    return ok("compilation", f"an empty kernel for {target} compiles")


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
