"""The environments .native/venv-<variant>.

An environment is made in a folder of its own, .native/envs/<variant>-<digest>/, that nothing points to.
Its stamp is written after everything is installed and has passed its checks; only then does the link
.native/venv-<variant> move to it, in one step. An interrupted build leaves a folder without a stamp, which
the next build empties; the link never names a half-installed environment. Resuming is cheap because
downloads, our wheel and pip's cache are kept.

The extension is installed editable for `cpu`, the development environment, so that an edit needs no
reinstallation; for `cuda`, which serves, it is installed as a wheel and the environment holds what was built.
"""

from __future__ import annotations

import os
import shutil
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import fetch
import import_check
import lockfile
import pins as pin_table
import stamp
import torch_wheel
import wheels
from build_errors import MISSING, BuildError
from piprun import pip

_DIGEST = "[0-9a-f]" * 12  # how an environment folder ends: cuda-* must not take in cuda-native-*
LAYOUT = 1  # raise when the way an environment is made changes
EXTENSION = pin_table.ROOT / "runtime_ext"
DISK_BYTES = {"cpu": 6 << 30, "cuda": 24 << 30}  # needed free, downloads and pip's cache included


def packages_of(variant: str) -> str:
    """Whose lock and pins a variant is made from: `cuda-native` differs from `cuda` only in the vLLM wheel."""
    return variant.removesuffix("-native")


@dataclass(frozen=True)
class Wanted:
    """What an environment has to be: `base` covers all but the extension."""

    variant: str
    base: str
    extension: str

    def stamp(self) -> dict[str, str]:
        return {"variant": self.variant, "base": self.base, "extension": self.extension}


def wanted(pins: pin_table.Pins, variant: str, wheel_sha256: str) -> Wanted:
    """Digests of the inputs. The tree's own place counts: an environment cannot be moved."""
    base = stamp.digest(
        [
            ("layout", LAYOUT),
            ("wheel", wheel_sha256),
            ("lock", lockfile.lock_path(packages_of(variant))),
            ("torch.git", pins.get("torch.git")),
            ("python", pins.get(f"python.{packages_of(variant)}")),
            ("root", str(pin_table.ROOT)),
        ]
    )
    if not (EXTENSION / "pyproject.toml").is_file():
        return Wanted(variant, base, "none")
    files = [EXTENSION / "pyproject.toml"] if variant == "cpu" else stamp.tree_files(EXTENSION)
    parts = [(str(path.relative_to(EXTENSION)), path) for path in files]
    return Wanted(variant, base, stamp.digest(parts))


def link_path(native: Path, variant: str) -> Path:
    return native / f"venv-{variant}"


def is_ready(native: Path, want: Wanted) -> bool:
    """Whether the linked environment is finished and of these very inputs."""
    link = link_path(native, want.variant)
    return stamp.read(link) == want.stamp() and (link / "bin" / "python").exists()


def ensure(
    pins: pin_table.Pins, native: Path, built: wheels.Built, variant: str, extension_wheel: Path | None = None
) -> bool:
    """Make the environment if it is not ready, with an extension that is built already if one is given.

    Returns whether anything was done.
    """
    lockfile.check(pins, packages_of(variant))
    want = wanted(pins, variant, built.sha256)
    if is_ready(native, want):
        return False
    require_python(pins, variant)
    folder = native / "envs" / f"{variant}-{want.base[:12]}"
    if stamp.read(folder).get("base") != want.base:
        _install_base(pins, native, built, variant, folder)
    stamp.write(folder, {"base": want.base})  # no longer whole, but this much need not be made again
    _install_extension(pins, native, variant, folder, extension_wheel)
    python = folder / "bin" / "python"
    pip(fetch.fetch(pins.artifact("tools.pip"), fetch.cache_dir()), python, ["check"])
    facts = import_check.run(python, pins, packages_of(variant))
    if variant != "cpu" and not facts["gpus"]:
        _note("no GPU on this machine: vLLM and its CUDA torch import; choosing a device was not tried")
    stamp.write(folder, want.stamp())
    publish(native, variant, folder)
    return True


def require_python(pins: pin_table.Pins, variant: str) -> None:
    """Raise BuildError unless this interpreter is the pinned minor version."""
    pinned = pins.get(f"python.{packages_of(variant)}")
    actual = f"{sys.version_info.major}.{sys.version_info.minor}"
    if actual != pinned:
        raise BuildError(f"the {variant} environment needs Python {pinned}, this is {actual}", MISSING)


def _install_base(pins: pin_table.Pins, native: Path, built: wheels.Built, variant: str, folder: Path) -> None:
    require_disk(native, DISK_BYTES[packages_of(variant)])
    shutil.rmtree(folder, ignore_errors=True)
    _note(f"making {folder.relative_to(native.parent)} (Python {sys.version.split()[0]})")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    cache = fetch.cache_dir()
    pip_wheel = fetch.fetch(pins.artifact("tools.pip"), cache)
    torch_wheel.obtain(pins, packages_of(variant), pip_wheel, cache)
    python = folder / "bin" / "python"
    lock = str(lockfile.lock_path(packages_of(variant)))
    _note("installing the locked packages")
    # --no-compile: bytecode is made for what is imported, not for all that is installed.
    locked = ["--require-hashes", "--only-binary", ":all:", "--find-links", str(cache), "-r", lock]
    pip(pip_wheel, python, ["install", "--no-deps", "--no-compile", *locked])
    _note(f"installing {built.path.name}")
    pip(pip_wheel, python, ["install", "--no-deps", "--no-compile", "--no-index", str(built.path)])


def _install_extension(pins: pin_table.Pins, native: Path, variant: str, folder: Path, wheel: Path | None) -> None:
    if not (EXTENSION / "pyproject.toml").is_file():
        _note("runtime_ext/ is not there: the environment has vLLM alone")
        return
    pip_wheel = fetch.fetch(pins.artifact("tools.pip"), fetch.cache_dir())
    python = folder / "bin" / "python"
    local = ["--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall"]
    if variant == "cpu":
        _note("installing the extension, editable")
        pip(pip_wheel, python, ["install", *local, "--editable", str(EXTENSION)])
        return
    if wheel is None:
        _note("building and installing the extension")
        dist = native / "dist" / "extension"
        shutil.rmtree(dist, ignore_errors=True)
        pip(pip_wheel, python, ["wheel", *local[:3], "--wheel-dir", str(dist), str(EXTENSION)])
        (wheel,) = dist.glob("*.whl")
    pip(pip_wheel, python, ["install", *local, str(wheel)])


def publish(native: Path, variant: str, folder: Path) -> None:
    """Point the link at the finished environment and remove older ones, but for the one it replaces,
    which a running server may still be reading."""
    link = link_path(native, variant)
    if link.exists() and not link.is_symlink():
        raise BuildError(f"{link} is not a link of this build's; move it away and run again")
    previous = link.resolve() if link.exists() else None
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(folder, native))
    os.replace(temporary, link)
    for other in (native / "envs").glob(f"{variant}-{_DIGEST}"):
        if other.resolve() not in (folder.resolve(), previous):
            shutil.rmtree(other, ignore_errors=True)


def require_disk(native: Path, needed: int) -> None:
    """Raise BuildError if the file system has too little room."""
    native.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(native).free
    if free < needed:
        raise BuildError(f"{native} has {free >> 30} GiB free, the environment needs {needed >> 30}", MISSING)


def _note(text: str) -> None:
    print(f"build: {text}", file=sys.stderr, flush=True)
