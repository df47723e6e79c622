"""Where the CPU build of torch comes from: the machine's own pip configuration first, then the pinned address."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import fetch
import pins
import pytest
import torch_wheel
from build_errors import BuildError

NAME = "torch-0.0.1+cpu-py3-none-any.whl"


def small_torch(path: Path, text: str) -> bytes:
    info = "torch-0.0.1+cpu.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch.py", text)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1+cpu\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def table(tmp_path: Path, file_server) -> pins.Pins:
    """Pins of a small torch that the file server has."""
    file_server.body = small_torch(tmp_path / NAME, "right")
    sha256 = hashlib.sha256(file_server.body).hexdigest()
    fields = {"version": "0.0.1+cpu", "filename": NAME, "url": file_server.url, "sha256": sha256}
    return pins.Pins({"torch": {"cpu": fields, "cuda": fields}}, tmp_path / "pins.toml")


@pytest.fixture
def pip_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip is configured to look in."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def obtain(table: pins.Pins, cache: Path, variant: str = "cpu") -> str:
    real = pins.load().artifact("tools.pip")
    assert fetch.is_verified(real, fetch.cache_dir()), "run `make setup` first"
    path = torch_wheel.obtain(table, variant, fetch.cache_dir() / real.filename, cache)
    with zipfile.ZipFile(path) as archive:
        return archive.read("torch.py").decode()


def test_a_folder_that_pip_knows_is_asked_first(table, file_server, pip_folder: Path, tmp_path: Path) -> None:
    (pip_folder / NAME).write_bytes(file_server.body)
    assert obtain(table, tmp_path / "cache") == "right"
    assert file_server.seen == []
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [NAME]


def test_a_file_of_that_name_with_other_content_is_not_used(table, file_server, pip_folder, tmp_path: Path) -> None:
    small_torch(pip_folder / NAME, "wrong")
    assert obtain(table, tmp_path / "cache") == "right"
    assert len(file_server.seen) == 1


def test_without_it_the_pinned_address_is_used(table, file_server, pip_folder: Path, tmp_path: Path) -> None:
    assert obtain(table, tmp_path / "cache") == "right"
    assert len(file_server.seen) == 1


def test_neither_is_one_clear_error(table, file_server, pip_folder: Path, tmp_path: Path) -> None:
    file_server.status = 404
    with pytest.raises(BuildError, match=f"cannot download {file_server.url}.*or put the file at .*{NAME[:5]}"):
        obtain(table, tmp_path / "cache")


def test_the_cuda_build_never_comes_from_a_folder(table, file_server, pip_folder: Path, tmp_path: Path) -> None:
    """A folder for the CPU build must not stand in for PyPI's."""
    (pip_folder / NAME).write_bytes(file_server.body)
    assert obtain(table, tmp_path / "cache", "cuda") == "right"
    assert len(file_server.seen) == 1
