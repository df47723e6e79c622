"""Entry of scripts/offline-bundle.sh. Exit status: 0 done, 1 failed, 2 usage, 3 something is missing here."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import build
import offline_install
import offline_make
import offline_manifest
import offline_parts
import pins as pin_table
from build_errors import FAILED, OK, BuildError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SMALLEST = 1 << 20


def part_bytes(text: str) -> int:
    """Bytes of `62MB`, `1GiB`, `1000000`. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text)
    if match is None or match[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write a number with KB, MB, GB, KiB, MiB or GiB")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size < _SMALLEST:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1MiB; name a larger size")
    return size


def note(text: str) -> None:
    print(f"offline: {text}", file=sys.stderr, flush=True)


def run_make(options: argparse.Namespace) -> None:
    started = time.monotonic()
    pins = pin_table.load()
    build.require_platform(pins)
    with build.exclusive(build.NATIVE, options.variant):
        manifest = offline_make.make(pins, options.variant, build.NATIVE, options.out, options.part_size, note)
    print(
        f"offline: {options.out} has {len(manifest.parts)} parts with {manifest.total:,} bytes of {manifest.commit}, "
        f"made in {time.monotonic() - started:.0f} s; identity {manifest.identity}"
    )


def read(options: argparse.Namespace) -> offline_manifest.Manifest:
    """The manifest. Raises BuildError if it is not the one that `--identity` names."""
    manifest = offline_manifest.read(options.bundle)
    if options.identity not in (None, manifest.identity):
        raise BuildError(
            f"{options.bundle}: identity is {manifest.identity}, --identity says {options.identity}; copy the "
            "bundle again from where that one was made"
        )
    return manifest


def run_verify(options: argparse.Namespace) -> None:
    manifest = read(options)
    offline_parts.verify(manifest, options.bundle, note)
    print(f"offline: {len(manifest.parts)} parts are right; identity {manifest.identity}")


def run_install(options: argparse.Namespace) -> None:
    started = time.monotonic()
    pins = pin_table.load()
    build.require_platform(pins)
    manifest = read(options)
    with build.exclusive(build.NATIVE, manifest.variant):
        variant = offline_install.install(pins, options.bundle, build.NATIVE, note)
    print(f"offline: .native/venv-{variant} is ready ({time.monotonic() - started:.0f} s)")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="offline-bundle.sh", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="make|verify|install")
    make = verbs.add_parser("make", help="write a bundle; needs a network")
    make.add_argument("out", type=Path, metavar="OUT", help="folder of the bundle")
    make.add_argument("--variant", choices=pin_table.VARIANTS, default="cuda")
    make.add_argument("--part-size", type=part_bytes, default="1GiB", metavar="SIZE", help="such as 62MB; default 1GiB")
    make.set_defaults(run=run_make)
    for name, run, text in (
        ("verify", run_verify, "read every part and compare it with the manifest"),
        ("install", run_install, "make .native/venv-<variant> from the bundle, without a network"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder with MANIFEST.json and the parts")
        verb.add_argument("--identity", metavar="HEX", help="what `make` printed: refuse any other bundle")
        verb.set_defaults(run=run)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except BuildError as error:
        print(f"offline: error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"offline: error: {error}; run the same command again: what was right is kept", file=sys.stderr)
        return FAILED
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
