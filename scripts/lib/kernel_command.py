"""Entry of scripts/kernels.sh: compiles kernels/src to kernels/cubins and writes kernels/MANIFEST.json.

    (nothing)       compile what is new or changed
    --check         compile elsewhere what this machine has not reproduced before, and name each difference
    --force         with either: compile everything
    --out FOLDER    of cubins/ and MANIFEST.json; kernels/ if not given

Exit status: 0 done, or no difference; 1 failed, or differences; 2 usage; 3 a tool is missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import kernel_build
import kernel_check
import kernel_manifest
import kernel_toolkit
import pins as pin_table
from build_errors import FAILED, OK, BuildError

NATIVE = pin_table.ROOT / ".native"


def main(arguments: list[str], root: Path = pin_table.ROOT) -> int:
    parser = argparse.ArgumentParser(prog="kernels.sh", description="Compile the CUDA kernels with the pinned nvcc.")
    parser.add_argument("--check", action="store_true", help="compile elsewhere and name each difference")
    parser.add_argument("--force", action="store_true", help="compile what has not changed, or was checked before, too")
    parser.add_argument("--out", type=Path, default=root / "kernels", help="folder of cubins/ and MANIFEST.json")
    options = parser.parse_args(arguments)
    try:
        pins = pin_table.load(root / "pins.toml")
        compiler = kernel_toolkit.compiler(pins, NATIVE)
        architectures = pins.get("cuda.kernel_architectures")
        run = check if options.check else build
        return run(root, options.out, compiler, architectures, options.force)
    except BuildError as error:
        print(f"kernels: error: {error}", file=sys.stderr)
        return error.code


def build(root: Path, out: Path, compiler: kernel_toolkit.Compiler, architectures: list[str], force: bool) -> int:
    started = time.monotonic()
    compiled = kernel_build.build(root, out, compiler, architectures, force=force)
    print("\n".join(kernel_manifest.summary(kernel_manifest.read(out))))
    seconds = time.monotonic() - started
    print(f"kernels: {compiled} compiled by nvcc {compiler.version} ({compiler.nvcc}) in {seconds:.0f} s")
    return OK


def check(root: Path, out: Path, compiler: kernel_toolkit.Compiler, architectures: list[str], force: bool) -> int:
    started = time.monotonic()
    notes = kernel_check.notes_dir()
    problems, compiled = kernel_check.check(root, out, compiler, architectures, notes=notes, force=force)
    for line in problems:
        print(f"kernels: error: {line}", file=sys.stderr)
    if problems:
        print("kernels: error: cubins differ from what the sources give; run `make kernels`", file=sys.stderr)
        return FAILED
    seconds = time.monotonic() - started
    print(f"kernels: every cubin is what its source gives; {compiled} compiled again, byte for byte ({seconds:.0f} s)")
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
