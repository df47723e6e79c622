"""A device gets the nearest cubin that runs on it, byte for byte the one that was built, or an error that says why."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from moet_w2.errors import KernelError
from moet_w2.kernels import cubins

ARCHITECTURES = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Cubins that hold their own names, and one source that exists for a single architecture."""
    entries = {}
    for arch, source in [*((arch, "decode") for arch in ARCHITECTURES), ("sm_120a", "decode_bs")]:
        path = tmp_path / "cubins" / arch / f"{source}.cubin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{arch}/{source}")
        entries[f"{arch}/{source}"] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"format": cubins.FORMAT, "cubins": entries}))
    return tmp_path


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_80"),
        ((8, 7), "sm_80"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((12, 0), "sm_120a"),
    ],
)
def test_the_nearest_cubin_that_runs_is_taken(folder: Path, capability: tuple[int, int], arch: str) -> None:
    assert cubins.find("decode", capability, folder) == f"{arch}/decode".encode()


@pytest.mark.parametrize("capability", [(7, 5), (10, 3), (12, 1), (9, 1), (13, 0)])
def test_a_device_that_no_cubin_runs_on_is_refused(folder: Path, capability: tuple[int, int]) -> None:
    with pytest.raises(KernelError) as caught:
        cubins.find("decode", capability, folder)
    text = str(caught.value)
    assert f"compute capability {capability[0]}.{capability[1]}" in text
    assert ", ".join(ARCHITECTURES) in text and "make kernels" in text


def test_a_later_minor_version_runs_only_general_code() -> None:
    assert cubins.architecture((12, 1), ["sm_120", "sm_120a"]) == "sm_120"
    assert cubins.architecture((12, 0), ["sm_120", "sm_120a"]) == "sm_120a"
    assert cubins.architecture((8, 0), ["sm_89", "sm_86"]) is None


def test_a_source_of_one_architecture_is_refused_elsewhere(folder: Path) -> None:
    assert cubins.find("decode_bs", (12, 0), folder) == b"sm_120a/decode_bs"
    with pytest.raises(KernelError, match="compiled are sm_120a;"):
        cubins.find("decode_bs", (9, 0), folder)


def test_an_unknown_source_names_those_there_are(folder: Path) -> None:
    with pytest.raises(KernelError, match="no kernel source 'decod'; it has: decode, decode_bs"):
        cubins.find("decod", (9, 0), folder)


def test_a_changed_file_is_not_loaded(folder: Path) -> None:
    path = folder / "cubins" / "sm_90a" / "decode.cubin"
    path.write_text("something else")
    with pytest.raises(KernelError, match=f"{path} has sha256 .* the manifest says"):
        cubins.find("decode", (9, 0), folder)
    path.unlink()
    with pytest.raises(KernelError, match=r"cannot be read \(No such file"):
        cubins.find("decode", (9, 0), folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ('{"format": 99}', "has format 99"), ("[]", "has format None"), (None, "does not exist")],
)
def test_a_bad_manifest_is_one_clear_error(folder: Path, text: str | None, message: str) -> None:
    manifest = folder / "MANIFEST.json"
    manifest.unlink()
    if text is not None:
        manifest.write_text(text)
    with pytest.raises(KernelError, match=message) as caught:
        cubins.find("decode", (9, 0), folder)
    assert str(manifest) in str(caught.value)


def test_a_name_that_is_no_architecture_is_an_error() -> None:
    with pytest.raises(KernelError, match="'compute_90' is no architecture"):
        cubins.architecture((9, 0), ["compute_90"])


def test_the_source_tree_is_where_they_come_from() -> None:
    root = Path(__file__).resolve().parents[2]
    links = {path.name: path.resolve() for path in cubins.PREBUILT.iterdir()}
    assert links == {name: root / "kernels" / name for name in ("cubins", "MANIFEST.json")}


def test_a_wheel_carries_them(folder: Path, tmp_path: Path) -> None:
    """On a copy of the project beside the stand-in cubins, so that it does not matter which are committed."""
    extension = Path(__file__).resolve().parents[1]
    tree = tmp_path / "tree"
    skipped = shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__")
    shutil.copytree(extension, tree / "runtime_ext", symlinks=True, ignore=skipped)
    (tree / "kernels").mkdir()
    (folder / "cubins").rename(tree / "kernels" / "cubins")
    (folder / "MANIFEST.json").rename(tree / "kernels" / "MANIFEST.json")
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree / "runtime_ext", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    prebuilt = tmp_path / "installed" / "moet_w2" / "kernels" / "prebuilt"
    assert not any(path.is_symlink() for path in prebuilt.rglob("*"))
    assert cubins.find("decode", (8, 6), prebuilt) == b"sm_80/decode"
    assert len(list(prebuilt.rglob("*.cubin"))) == len(ARCHITECTURES) + 1
