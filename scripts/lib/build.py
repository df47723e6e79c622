"""Entry of scripts/build-native.sh: builds one variant.

Variants: cpu, cuda (the pinned wheel, patched and repacked, in an environment with the extension) and
cuda-native (the pinned source archive, patched and compiled for the pinned architecture).
Exit status: 0 done, 1 failed, 2 usage, 3 something that the variant needs is missing here, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import container_lint
import fetch
import import_check
import kernel_toolkit
import lockfile
import native_build
import pins as pin_table
import venvs
import wheels
from build_errors import FAILED, INTERRUPTED, MISSING, OK, BuildError

NATIVE = pin_table.ROOT / ".native"


@contextmanager
def exclusive(native: Path, variant: str) -> Iterator[None]:
    """One build of a variant at a time in a tree. Waits for another one, saying so."""
    with _lock_file(native, variant) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"build: waiting for another {variant} build in this tree", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock_file(native: Path, variant: str) -> TextIO:
    try:
        native.mkdir(parents=True, exist_ok=True)
        return (native / f"build-{variant}.lock").open("w")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise BuildError(
            f"{native} cannot be written ({error.strerror}); build in a checkout that you own, or as its owner"
        ) from None


def require_platform(pins: pin_table.Pins) -> None:
    """Raise BuildError on a machine that the pinned wheels do not run on."""
    here = (platform.system(), platform.machine())
    pinned = (pins.get("platform.system"), pins.get("platform.machine"))
    if here != pinned:
        raise BuildError(f"the pinned wheels are for {' '.join(pinned)}; this is {' '.join(here)}", MISSING)


def build_wheel_variant(pins: pin_table.Pins, variant: str, native: Path = NATIVE) -> None:
    """cpu or cuda: wheel, environment, import check."""
    require_platform(pins)
    started = time.monotonic()
    if variant == "cpu":
        # The patch check and the upstream tests read the source archive, those of kernels/ read cubins, and hadolint
        # reads Containerfile; tests have no network of their own.
        fetch.fetch(pins.artifact("vllm.sdist"), fetch.cache_dir())
        kernel_toolkit.unpacked(pins, "cuda.readers", native)
        container_lint.hadolint(pins, native)
    built = wheels.build(pins, variant, native)
    done = venvs.ensure(pins, native, built, variant)
    seconds = time.monotonic() - started
    what = f"made in {seconds:.0f} s" if done else f"already up to date ({seconds:.1f} s)"
    print(f"build: .native/venv-{variant} {what}")


def check_wheel_variant(pins: pin_table.Pins, variant: str, native: Path = NATIVE) -> int:
    """--check of cpu and cuda: report whether the environment is the one that the tree asks for."""
    require_platform(pins)
    lockfile.check(pins, variant)
    built = wheels.current(pins, variant, native)
    if built is None or not venvs.is_ready(native, venvs.wanted(pins, variant, built.sha256)):
        print(f"build: .native/venv-{variant} is missing or not of these pins, patch and extension")
        return FAILED
    facts = import_check.run(venvs.link_path(native, variant) / "bin" / "python", pins, variant)
    for name, value in facts.items():
        print(f"{name:14} {value}")
    return OK


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="build-native.sh",
        description="Build vLLM with our patch and extension. Exit status: 0 done, 1 failed, 2 usage, "
        "3 something that the variant needs is missing on this machine.",
    )
    parser.add_argument("variant", nargs="?", default="cpu", choices=("cpu", "cuda", "cuda-native"))
    parser.add_argument("--check", action="store_true", help="report the state; build nothing")
    parser.add_argument("--configure-only", action="store_true", help="cuda-native: stop after CMake has configured")
    options = parser.parse_args(arguments)
    if options.configure_only and options.variant != "cuda-native":
        parser.error("--configure-only belongs to cuda-native")
    try:
        pins = pin_table.load()
        if options.variant == "cuda-native":
            if options.check:
                return native_build.check(pins, NATIVE)
            with exclusive(NATIVE, options.variant):
                return native_build.build(pins, NATIVE, configure_only=options.configure_only)
        if options.check:
            return check_wheel_variant(pins, options.variant)
        with exclusive(NATIVE, options.variant):
            build_wheel_variant(pins, options.variant)
    except BuildError as error:
        print(f"build: error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("build: interrupted; run the same command again, what was made stays", file=sys.stderr)
        return INTERRUPTED
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
