"""The pinned compiler is used, from wherever it comes, and no other."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import fetch
import kernel_command
import kernel_toolkit
import native_tools
import pins
import pytest
from build_errors import MISSING, BuildError

TABLE = pins.load()
PINNED = TABLE.get("cuda.compiler")


def nvcc_text(version: str) -> str:
    return f"Cuda compilation tools, release 1.2, V{version}\nBuild cuda_1/compiler.1_0\n"


def toolkit(home: Path, version: str) -> Path:
    """A folder with an nvcc that says only which version it is."""
    nvcc = home / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\ncat <<'E'\n{nvcc_text(version)}E\n")
    nvcc.chmod(0o755)
    return home


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(native_tools, "find_nvcc", lambda: None)


def wheel_pins(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> pins.Pins:
    """Pins of one toolkit wheel that lies in the cache of downloads already."""
    monkeypatch.setattr(fetch, "cache_dir", lambda: folder)
    wheel = folder / "nvcc.whl"
    tool = toolkit(folder / "content" / "nvidia" / "cu1", version)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tool / "bin" / "nvcc", "nvidia/cu1/bin/nvcc")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    entry = {"filename": wheel.name, "url": "https://nowhere.invalid/nvcc.whl", "sha256": sha256}
    return pins.Pins({"cuda": {"compiler": PINNED, "toolkit": {"nvcc": entry}}}, Path("pins.toml"))


def test_the_pinned_toolkit_of_the_machine_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path, PINNED)))
    found = kernel_toolkit.compiler(TABLE, tmp_path / "native", download=False)
    assert found == kernel_toolkit.Compiler(tmp_path / "bin" / "nvcc", PINNED, "cuda_1/compiler.1_0")


def test_another_compiler_in_cuda_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path, "1.2.3")))
    with pytest.raises(BuildError, match=f"is nvcc 1.2.3, pins.toml wants {PINNED}; set CUDA_HOME to") as caught:
        kernel_toolkit.compiler(TABLE, tmp_path / "native")
    assert caught.value.code == MISSING


def test_another_compiler_on_path_gives_way_to_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    other = toolkit(tmp_path / "other", "1.2.3") / "bin" / "nvcc"
    monkeypatch.setattr(native_tools, "find_nvcc", lambda: other)
    table = wheel_pins(tmp_path, PINNED, monkeypatch)
    found = kernel_toolkit.compiler(table, tmp_path / "native")
    assert found.version == PINNED and found.nvcc.is_relative_to(tmp_path / "native" / "cuda")


@pytest.mark.usefixtures("no_compiler")
def test_wheels_are_unpacked_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = wheel_pins(tmp_path, PINNED, monkeypatch)
    first = kernel_toolkit.compiler(table, tmp_path / "native")
    (tmp_path / "nvcc.whl").unlink()
    assert kernel_toolkit.compiler(table, tmp_path / "native", download=False) == first
    assert len(list((tmp_path / "native" / "cuda").iterdir())) == 1


@pytest.mark.usefixtures("no_compiler")
def test_wheels_of_another_version_than_the_pin_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = wheel_pins(tmp_path, "1.2.3", monkeypatch)
    with pytest.raises(BuildError, match=f"hold nvcc 1.2.3, cuda.compiler in pins.toml is {PINNED}"):
        kernel_toolkit.compiler(table, tmp_path / "native")


@pytest.mark.usefixtures("no_compiler")
def test_nothing_is_downloaded_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "cache_dir", lambda: tmp_path / "empty")
    with pytest.raises(BuildError, match="not downloaded yet; run `make kernels`") as caught:
        kernel_toolkit.compiler(TABLE, tmp_path / "native", download=False)
    assert caught.value.code == MISSING


def test_without_a_host_compiler_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="install g\\+\\+") as caught:
        kernel_toolkit.compiler(TABLE, tmp_path)
    assert caught.value.code == MISSING


@pytest.mark.parametrize("name", TABLE.get("cuda.readers"))
def test_the_readers_of_cubins_run(name: str) -> None:
    tool = kernel_toolkit.reader(TABLE, kernel_command.NATIVE, name)
    done = subprocess.run([str(tool), "--version"], capture_output=True, text=True, check=True)
    assert f"V{TABLE.get(f'cuda.readers.{name}.version')}" in done.stdout


@pytest.mark.parametrize("name", ["nvcc", "nvvm", "crt"])
def test_the_wheels_are_of_the_pinned_compiler(name: str) -> None:
    assert TABLE.get(f"cuda.toolkit.{name}.version") == PINNED
