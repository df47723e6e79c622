"""Compiles some of vLLM's own extensions from the pinned source, as far as a machine without the git sources can.

    .native/venv-cuda/bin/python bench/native_compile.py [--arch 9.0a] [--seconds 1200] [--out FILE] [TARGET...]

Needs the pinned nvcc and .native/venv-cuda, no GPU. The source is the patched one of `cuda-native`. The build differs
from that one where something cannot be had without git, and only there; the result file says so:

* CMakeLists.txt ends before the external projects (DeepGEMM, FlashMLA, ...), behind all of vLLM's own extensions;
* CUTLASS's headers are those in vLLM's wheel, of another release; two source files of the targets read some;
* the generation of the Machete kernels, which belong to none of the targets, is skipped;
* libcuda is an empty library, as a toolkit's stub is; libnvrtc and the headers of cuBLAS, cuSPARSE and cuSOLVER, which
  compiler-only toolkits lack, are those that come with torch.

One compiler runs at a time. After --seconds it is stopped; what was compiled stays for the next run, which goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "scripts" / "lib")]

import facts  # noqa: E402
import kernel_toolkit  # noqa: E402
import native_build  # noqa: E402
import native_source  # noqa: E402
import native_tools  # noqa: E402
import pins as pin_table  # noqa: E402
from build_errors import MISSING, BuildError  # noqa: E402

NATIVE = ROOT / ".native"
TARGETS = ("spinloop", "cumem_allocator", "_moe_C_stable_libtorch")
_CUT = "# For CUDA and HIP builds also build the triton_kernels external package."


def prepare(pins: pin_table.Pins, work: Path) -> Path:
    """The patched source, cut before the external projects. Raises BuildError if the place is not found."""
    tree = work / "source"
    if not tree.exists():
        shutil.copytree(native_source.patched_tree(pins, NATIVE), tree, symlinks=True)
    lists = tree / "CMakeLists.txt"
    head, mark, _ = lists.read_text().partition(_CUT)
    if mark:
        lists.write_text(head)
    elif lists.stat().st_size == (NATIVE / "work/cuda-native/source/CMakeLists.txt").stat().st_size:
        raise BuildError(f"{lists} has no line {_CUT!r} any more; look where its external projects begin")
    return tree


def environment(pins: pin_table.Pins, arch: str, packages: Path, work: Path) -> dict[str, str]:
    """Variables of the build: those of cuda-native, for `arch`, with the CUTLASS of vLLM's wheel.

    The host compiler also looks into a folder of links to library headers, behind the toolkit's own.
    """
    headers = work / "headers"
    headers.mkdir(parents=True, exist_ok=True)
    for library in ("cublas", "cusparse", "cusolver"):
        for header in packages.glob(f"nvidia/*/include/{library}*.h"):
            (headers / header.name).unlink(missing_ok=True)
            (headers / header.name).symlink_to(header)
    cutlass = packages / "vllm" / "third_party" / "fmha_sm100" / "cutlass"
    made = native_build.build_environment(pins, NATIVE)
    ours = {"TORCH_CUDA_ARCH_LIST": arch, "VLLM_CUTLASS_SRC_DIR": str(cutlass), "CPATH": f"{headers}:{cutlass}/include"}
    return {**os.environ, **made, **ours}


def configure(tree: Path, build: Path, packages: Path, env: dict[str, str]) -> float:
    """Run CMake in `build` unless it has. Returns the seconds it took. Raises BuildError with CMake's first error."""
    log = build / "configure.log"
    if (build / "build.ninja").exists():
        return configure_seconds(log.read_text())
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    stub = build.parent / "libcuda.so"
    library = ["g++", "-shared", "-o", str(stub), "-Wl,-soname,libcuda.so.1", "-x", "c++", "/dev/null"]
    subprocess.run(library, check=True)
    scripts = NATIVE.absolute() / "venv-cuda" / "bin"
    machete = hashlib.md5((tree / "csrc/quantization/machete/generate.py").read_bytes()).hexdigest()
    nvrtc = next(packages.glob("nvidia/*/lib/libnvrtc.so.*"))
    command = [str(scripts / "cmake"), str(tree), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    command += ["-DVLLM_TARGET_DEVICE=cuda", f"-DVLLM_PYTHON_EXECUTABLE={scripts / 'python'}"]
    command += [f"-DCMAKE_CUDA_COMPILER={env['CUDA_HOME']}/bin/nvcc", f"-DMACHETE_GEN_SCRIPT_HASH={machete}"]
    command += [f"-DCUDA_nvrtc_LIBRARY={nvrtc}", f"-DCUDA_cuda_driver_LIBRARY={stub}"]
    done = subprocess.run(command, cwd=build, env=env, capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise BuildError(f"CMake stopped at {native_build.first_error(done.stderr)}; log: {log}")
    return configure_seconds(log.read_text())


def configure_seconds(log: str) -> float:
    """What CMake says that configuring took. Raises BuildError if it does not."""
    match = re.search(r"^-- Configuring done \(([\d.]+)s\)$", log, re.MULTILINE)
    if match is None:
        raise BuildError("CMake does not say how long configuring took; delete the build folder and run it again")
    return float(match[1])


def compile_target(target: str, build: Path, env: dict[str, str], until: float) -> dict[str, Any]:
    """Build one target with one job until the time is up.

    Returns steps done and in all, seconds of each step, object files by architecture, and, if it is whole, the
    library's bytes and sha256.
    """
    ninja = NATIVE.absolute() / "venv-cuda" / "bin" / "ninja"
    asked = [ninja, "-t", "commands", target]
    steps = len(subprocess.run(asked, cwd=build, capture_output=True, text=True, check=True).stdout.splitlines())
    process = subprocess.Popen(
        [ninja, "-j1", target], cwd=build, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    stopped = False
    try:
        output, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        stopped = True
        process.terminate()
        output, _ = process.communicate()
    library = next(build.glob(f"{target}*.so"), None) if process.returncode == 0 else None
    seconds = step_seconds((build / ".ninja_log").read_text(), target)
    objects = sorted((build / "CMakeFiles" / f"{target}.dir").rglob("*.cu.o"))
    result: dict[str, Any] = {"steps": steps, "done": len(seconds), "seconds": round(sum(seconds.values()), 1)}
    result["slowest"] = dict(sorted(seconds.items(), key=lambda item: -item[1])[:5])
    result["architectures"] = architectures(objects)
    if library is not None:
        result |= {"bytes": library.stat().st_size, "sha256": hashlib.sha256(library.read_bytes()).hexdigest()}
    elif stopped:
        result["stopped"] = "the time was up"
    else:
        result["error"] = next((line for line in output.splitlines() if "error" in line.lower()), output[-300:])
    return result


def differences() -> list[str]:
    """The list in this module's docstring, an entry a line."""
    listed = __doc__.partition("\n\n* ")[2].partition("\n\n")[0]
    return [" ".join(entry.split()).rstrip(";.") for entry in listed.split("\n* ")]


def step_seconds(log: str, target: str) -> dict[str, float]:
    """Seconds of the target's finished steps, by file, out of .ninja_log (start and end in ms, then the output)."""
    found = {}
    for line in log.splitlines():
        fields = line.split("\t")
        if len(fields) < 4 or target not in fields[3]:
            continue
        found[fields[3].rpartition(f"{target}.dir/")[2]] = round((int(fields[1]) - int(fields[0])) / 1000, 1)
    return found


def architectures(objects: list[Path]) -> dict[str, int]:
    """How many object files hold GPU code of each architecture, asked of the readers of kernels/."""
    counts: dict[str, int] = {}
    cuobjdump = kernel_toolkit.reader(pin_table.load(), NATIVE, "cuobjdump") if objects else None
    for file in objects:
        done = subprocess.run([cuobjdump, "--list-elf", file], capture_output=True, text=True)
        for name in set(re.findall(r"\bsm_\w+", done.stdout)):
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=list(TARGETS), help=" ".join(TARGETS))
    parser.add_argument("--arch", default="9.0a", help="as TORCH_CUDA_ARCH_LIST writes it; default 9.0a")
    parser.add_argument("--seconds", type=float, default=1200, help="compile no longer than that; default 1200")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "native_compile.json")
    options = parser.parse_args(arguments)
    try:
        pins = pin_table.load()
        if not (NATIVE / "venv-cuda" / "bin" / "ninja").exists():
            raise BuildError(".native/venv-cuda is not there; run scripts/build-native.sh cuda", MISSING)
        packages = next((NATIVE.absolute() / "venv-cuda" / "lib").glob("python*/site-packages"))
        work = NATIVE.absolute() / "work" / "native-compile"
        env = environment(pins, options.arch, packages, work)
        tree = prepare(pins, work)
        build = work / f"build-{options.arch}"
        results: dict[str, Any] = {"arch": options.arch, "compiler": pins.get("cuda.compiler")}
        results["host_compiler"] = native_tools.output("g++", "-dumpfullversion")
        results["differs_from_cuda_native"] = differences()
        results["configure_seconds"] = configure(tree, build, packages, env)
        results["targets"] = {}
        until = time.monotonic() + options.seconds
        for target in options.targets:
            print(f"native: {target}", file=sys.stderr, flush=True)
            results["targets"][target] = compile_target(target, build, env, until)
            facts.write(options.out, results)
    except BuildError as error:
        print(f"native: error: {error}", file=sys.stderr)
        return error.code
    for target, result in results["targets"].items():
        print(f"{target}: {result['done']} of {result['steps']} steps, {result['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
