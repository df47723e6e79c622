"""Installs an offline bundle: the same environment as `build-native.sh` makes, from the bundle's files alone.

The bundle's files are put together below .native/offline/install, which then stands in for the download cache, and
the build goes its usual way with pip told to use no index. So the stamp, the checks and the link are the usual ones.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fetch
import offline_make
import offline_manifest
import offline_parts
import offline_start
import pins as pin_table
import venvs
import wheels
from build_errors import BuildError
from offline_manifest import Manifest
from offline_parts import Note


def install(pins: pin_table.Pins, bundle: Path, native: Path, note: Note) -> str:
    """Make .native/venv-<variant>. Returns the variant. Raises BuildError that names the first bad part or package."""
    manifest = offline_manifest.read(bundle)
    offline_start.require_machine(manifest)
    require_tree(pins, manifest)
    built = _ready(manifest, native)
    if built is not None and venvs.is_ready(native, venvs.wanted(pins, manifest.variant, built.sha256)):
        note(f".native/venv-{manifest.variant} is up to date")
        return manifest.variant
    work = native / "offline" / "install"
    work.mkdir(parents=True, exist_ok=True)
    offline_parts.join(manifest, bundle, work, note)
    with _offline(work):
        _fill_cache(manifest, work)
        built, extension = _take_dist(manifest, work, native)
        venvs.ensure(pins, native, built, manifest.variant, extension)
    shutil.rmtree(work)
    return manifest.variant


def require_tree(pins: pin_table.Pins, manifest: Manifest) -> None:
    """Raise BuildError if the tree is not the one that the bundle was made from."""
    here = offline_make.inputs(pins, manifest.variant)
    if other := [name for name in here if here[name] != manifest.inputs.get(name)]:
        raise BuildError(
            f"the bundle was made from another tree ({', '.join(other)}): check out {manifest.commit}, or unpack the "
            f"bundle's own with python3 {offline_make.STARTER} FOLDER"
        )


def _dist(manifest: Manifest) -> list[offline_manifest.Piece]:
    return [file for file in manifest.files if file.name.startswith("dist/")]


def _vllm(manifest: Manifest) -> offline_manifest.Piece:
    return next(file for file in _dist(manifest) if file.name.startswith("dist/vllm-"))


def _ready(manifest: Manifest, native: Path) -> wheels.Built | None:
    """Our vLLM wheel, if an earlier run has put it into its place."""
    piece = _vllm(manifest)
    path = native / piece.name
    return wheels.Built(path, piece.sha256) if path.is_file() and fetch.sha256_of(path) == piece.sha256 else None


def _fill_cache(manifest: Manifest, work: Path) -> None:
    """Let the packages lie where the build looks for downloads. A second run finds them there."""
    cache = fetch.cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    for file in manifest.files:
        if file.name.startswith("wheels/") and not (link := cache / Path(file.name).name).exists():
            os.link(work / file.name, link)


def _take_dist(manifest: Manifest, work: Path, native: Path) -> tuple[wheels.Built, Path | None]:
    """Put our vLLM wheel into .native/dist with the note that `build-native.sh --check` reads."""
    piece = _vllm(manifest)
    target = native / piece.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    os.link(work / piece.name, target)
    note = target.with_name(f"vllm-{manifest.variant}.json")
    content = {"wheel": target.name, "inputs": manifest.inputs["vLLM wheel"], "sha256": piece.sha256}
    note.write_text(json.dumps(content, indent=1) + "\n")
    extension = next((work / file.name for file in _dist(manifest) if file is not piece), None)
    return wheels.Built(target, piece.sha256), extension


@contextmanager
def _offline(work: Path) -> Iterator[None]:
    """The build's own cache is in `work`, and pip reads no configuration and asks no index."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        del os.environ[name]
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1"}
    os.environ.update(settings, XDG_CACHE_HOME=str(work))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
