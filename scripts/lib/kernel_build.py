"""Entry of scripts/kernels.sh: compiles kernels/src to kernels/cubins and writes kernels/MANIFEST.json.

    (nothing)       compile what is new or changed
    --force         compile everything again
    --check         compile everything in a temporary folder and name each difference to what is committed
    --out FOLDER    write cubins/ and MANIFEST.json there instead, for trying out

Exit status: 0 done, or no difference; 1 failed, or differences; 2 usage; 3 a tool is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernel_compile
import kernel_manifest
import kernel_sources
import kernel_toolkit
import pins as pin_table
from build_errors import FAILED, OK, BuildError
from kernel_sources import Job
from kernel_toolkit import Compiler

NATIVE = pin_table.ROOT / ".native"


def build(root: Path, out: Path, compiler: Compiler, architectures: list[str], *, force: bool = False) -> int:
    """Bring `out` up to date with the tree. Returns how many cubins were compiled.

    A cubin is kept if its content hash is that of the manifest and its bytes are too. Each new one replaces the
    old in one step, the manifest last.
    """
    identity = {"version": compiler.version, "build": compiler.build}
    jobs = kernel_sources.jobs(root, architectures)
    inputs = {job.source: kernel_sources.inputs(root, job.source) for job in jobs}
    content = {job: kernel_sources.content(job, inputs[job.source], identity) for job in jobs}
    known = {} if force else kernel_manifest.entries(kernel_manifest.read(out))
    kept = {job.name: known[job.name] for job in jobs if kernel_manifest.is_current(out, job, content[job], known)}
    todo = [job for job in jobs if job.name not in kept]

    def compile_one(job: Job) -> dict[str, object]:
        compiled = kernel_compile.run(compiler.nvcc, root, job)
        _replace(kernel_manifest.cubin_path(out, job.name), compiled.image)
        return compiled.entry(job, inputs[job.source], content[job])

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        made = dict(zip([job.name for job in todo], pool.map(compile_one, todo), strict=True))
    manifest = {"format": kernel_manifest.FORMAT, "compiler": identity, "cubins": dict(sorted((kept | made).items()))}
    _replace(out / "MANIFEST.json", (json.dumps(manifest, indent=1) + "\n").encode())
    for path in set((out / "cubins").rglob("*.cubin")) - {kernel_manifest.cubin_path(out, job.name) for job in jobs}:
        path.unlink()
    return len(todo)


def check(root: Path, out: Path, compiler: Compiler, architectures: list[str]) -> list[str]:
    """Every way in which `out` is not what the tree gives: found by hash, and by compiling everything again
    elsewhere. The manifests hold the hash of every cubin, so equal manifests mean equal bytes."""
    problems = kernel_manifest.stale(root, out, compiler.version, architectures)
    with tempfile.TemporaryDirectory() as fresh:
        build(root, Path(fresh), compiler, architectures)
        manifests = kernel_manifest.read(out), kernel_manifest.read(Path(fresh))
        problems += [f"MANIFEST.json: {line}" for line in kernel_manifest.differences(*manifests)]
    return problems


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step; leave one alone that has these bytes."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data)
    temporary.replace(path)


def main(arguments: list[str], root: Path = pin_table.ROOT) -> int:
    parser = argparse.ArgumentParser(prog="kernels.sh", description="Compile the CUDA kernels with the pinned nvcc.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--force", action="store_true", help="compile everything again")
    mode.add_argument("--check", action="store_true", help="compile elsewhere and name each difference")
    parser.add_argument("--out", type=Path, default=root / "kernels", help="folder of cubins/ and MANIFEST.json")
    options = parser.parse_args(arguments)
    try:
        pins = pin_table.load(root / "pins.toml")
        architectures = pins.get("cuda.kernel_architectures")
        compiler = kernel_toolkit.compiler(pins, NATIVE)
        started = time.monotonic()
        if options.check:
            problems = check(root, options.out, compiler, architectures)
            for line in problems:
                print(f"kernels: error: {line}", file=sys.stderr)
            seconds = time.monotonic() - started
            if problems:
                print("kernels: error: differs from what the sources give; run `make kernels`", file=sys.stderr)
                return FAILED
            print(f"kernels: every cubin is what its source gives, byte for byte ({seconds:.0f} s)")
            return OK
        compiled = build(root, options.out, compiler, architectures, force=options.force)
        print("\n".join(kernel_manifest.summary(kernel_manifest.read(options.out))))
        seconds = time.monotonic() - started
        print(f"kernels: {compiled} compiled by nvcc {compiler.version} ({compiler.nvcc}) in {seconds:.0f} s")
    except BuildError as error:
        print(f"kernels: error: {error}", file=sys.stderr)
        return error.code
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
