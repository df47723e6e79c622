"""Makes an offline bundle: gathers what a variant is installed from, and cuts it into parts."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipapp
from pathlib import Path

import fetch
import lockfile
import offline_parts
import offline_tree
import offline_wheelhouse
import pins as pin_table
import repack
import venvs
import wheels
from offline_manifest import NAME, TREE, Manifest
from offline_parts import Note
from piprun import pip

STARTER = "install.pyz"
_STARTER_MODULES = ("build_errors", "offline_manifest", "offline_parts", "offline_tree", "offline_start")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "build", "dist", "tests", "*.egg-info", ".*cache", ".hypothesis")


def inputs(pins: pin_table.Pins, variant: str) -> dict[str, str]:
    """Digests of what a bundle is made from. The bundle of a tree with other ones is not for that tree."""
    extension = venvs.wanted(pins, variant, "").extension
    lock = fetch.sha256_of(lockfile.lock_path(variant))
    return {"vLLM wheel": wheels.inputs_digest(pins, variant), "lock": lock, "extension": extension}


def make(pins: pin_table.Pins, variant: str, native: Path, out: Path, part_bytes: int, note: Note) -> Manifest:
    """Write the bundle to `out`: parts, install.pyz, and the manifest last. Raises BuildError."""
    lockfile.check(pins, variant)
    venvs.require_python(pins, variant)
    commit = offline_tree.commit_of(pin_table.ROOT)
    offline_tree.require_tracked(pin_table.ROOT, venvs.EXTENSION)
    out.mkdir(parents=True, exist_ok=True)
    (out / NAME).unlink(missing_ok=True)  # not a bundle until it is whole
    work = native / "offline"
    packages = offline_wheelhouse.gather(pins, variant, work / f"wheelhouse-{variant}", note)
    pip_wheel = fetch.fetch(pins.artifact("tools.pip"), fetch.cache_dir())
    dist = [wheels.build(pins, variant, native).path]
    if variant != "cpu":  # which is installed editable, from the tree
        dist.append(extension_wheel(pip_wheel, packages[0].parent, work / f"extension-{variant}"))
    offline_tree.pack(pin_table.ROOT, work / TREE)
    files = [(TREE, work / TREE)]
    files += [(f"dist/{path.name}", path) for path in dist]
    files += [(f"wheels/{path.name}", path) for path in sorted({*packages, pip_wheel}, key=lambda path: path.name)]
    pieces, parts = offline_parts.cut(files, out, part_bytes, note)
    manifest = Manifest(
        variant=variant,
        python=pins.get(f"python.{variant}"),
        system=pins.get("platform.system"),
        machine=pins.get("platform.machine"),
        commit=commit,
        inputs=inputs(pins, variant),
        part_bytes=part_bytes,
        files=tuple(pieces),
        parts=tuple(parts),
    )
    write_starter(out)
    manifest.write(out)
    return manifest


def extension_wheel(pip_wheel: Path, wheelhouse: Path, out: Path) -> Path:
    """Our extension as a wheel, cubins included, built by the locked setuptools from a clean copy.

    Equal sources give an equal wheel.
    """
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="moet-extension-") as name:
        tree = Path(name) / "extension"
        shutil.copytree(venvs.EXTENSION, tree, ignore=_LEFT_OUT)  # links become what they point to
        options = ["--no-deps", "--no-index", "--find-links", str(wheelhouse), "--wheel-dir", str(out), str(tree)]
        before = os.environ.get("SOURCE_DATE_EPOCH")
        os.environ["SOURCE_DATE_EPOCH"] = repack.ZIP_EPOCH
        try:
            pip(pip_wheel, Path(sys.executable), ["wheel", *options])
        finally:
            os.environ.pop("SOURCE_DATE_EPOCH")
            if before is not None:
                os.environ["SOURCE_DATE_EPOCH"] = before
    (wheel,) = out.glob("*.whl")
    return wheel


def write_starter(out: Path) -> Path:
    """install.pyz: the modules that unpack the tree, for a host that has only Python and the bundle."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="moet-starter-") as name:
        folder = Path(name)
        for module in _STARTER_MODULES:
            path = folder / f"{module}.py"
            path.write_bytes((here / path.name).read_bytes())
            os.utime(path, (int(repack.ZIP_EPOCH),) * 2)
        temporary = out / f"{STARTER}.new"
        zipapp.create_archive(folder, temporary, "/usr/bin/env python3", "offline_start:main")
    return temporary.replace(out / STARTER)
