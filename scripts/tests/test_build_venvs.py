"""An environment counts only when it is whole: a stamp of these inputs, written last, behind one link."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import import_check
import lockfile
import pins
import pytest
import stamp
import venvs
import wheels
from build_errors import BuildError

BUILT = wheels.Built(Path("vllm.whl"), "0" * 64)


@pytest.fixture
def native(tmp_path: Path) -> Path:
    folder = tmp_path / ".native"
    folder.mkdir()
    return folder


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the slow steps by ones that leave a plausible folder and note that they ran."""
    ran: list[str] = []

    def base(table, native, built, variant, folder: Path) -> None:
        ran.append("base")
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "python").touch()
        stamp.write(folder, {"base": venvs.wanted(table, variant, built.sha256).base})

    monkeypatch.setattr(venvs, "_install_base", base)
    monkeypatch.setattr(venvs, "_install_extension", lambda *a: ran.append("extension"))
    monkeypatch.setattr(venvs, "pip", lambda *a: ran.append("pip check"))
    monkeypatch.setattr(import_check, "run", lambda *a: ran.append("import check") or {"gpus": 0})
    return ran


def ensure(native: Path) -> bool:
    return venvs.ensure(pins.load(), native, BUILT, "cpu")


def test_a_finished_environment_is_not_made_again(native: Path, steps: list[str]) -> None:
    assert ensure(native)
    assert steps == ["base", "extension", "pip check", "import check"]
    assert (native / "venv-cpu" / "bin" / "python").exists()
    assert not ensure(native)
    assert len(steps) == 4


def test_a_failing_import_check_leaves_no_environment(native: Path, steps: list[str], monkeypatch) -> None:
    def fail(*arguments: object) -> None:
        raise BuildError("cannot import")

    with monkeypatch.context() as patch:
        patch.setattr(import_check, "run", fail)
        with pytest.raises(BuildError, match="cannot import"):
            ensure(native)
    assert not (native / "venv-cpu").exists()
    assert ensure(native)
    assert steps.count("base") == 1  # what was whole is kept


def test_a_killed_installation_is_emptied_and_made_again(native: Path, steps: list[str]) -> None:
    """SIGKILL in the middle of the packages: the folder stays, and must not pass for an environment."""
    program = (
        "import os, signal, sys, pathlib, pins, venvs, wheels, piprun, torch_wheel, fetch\n"
        "native = pathlib.Path(sys.argv[1])\n"
        "def pip(*a, **k):\n"
        "    (next(native.glob('envs/cpu-*')) / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "venvs.pip = pip\n"
        "torch_wheel.obtain = fetch.fetch = lambda *a: pathlib.Path('unused')\n"
        "venvs.ensure(pins.load(), native, wheels.Built(pathlib.Path('vllm.whl'), '0' * 64), 'cpu')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(venvs.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program, str(native)], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (half,) = native.glob("envs/cpu-*")
    assert (half / "half").exists() and (half / "bin" / "python").exists()
    assert not (native / "venv-cpu").exists()
    want = venvs.wanted(pins.load(), "cpu", BUILT.sha256)
    assert not venvs.is_ready(native, want)
    (native / "venv-cpu").symlink_to(half)  # even if somebody points the link at it
    assert not venvs.is_ready(native, want)
    assert ensure(native)
    assert steps[0] == "base"


@pytest.mark.parametrize("field", ["base", "extension", "variant"])
def test_a_stamp_of_other_inputs_does_not_count(native: Path, steps: list[str], field: str) -> None:
    ensure(native)
    link = native / "venv-cpu"
    stamp.write(link, {**stamp.read(link), field: "something else"})
    assert not venvs.is_ready(native, venvs.wanted(pins.load(), "cpu", BUILT.sha256))
    assert ensure(native)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"variant": "cpu"}'])
def test_a_damaged_stamp_does_not_count(native: Path, steps: list[str], text: str) -> None:
    ensure(native)
    (native / "venv-cpu" / stamp.STAMP_NAME).write_text(text)
    assert ensure(native)


def test_another_wheel_or_tree_makes_another_environment(monkeypatch, tmp_path: Path) -> None:
    table = pins.load()
    first = venvs.wanted(table, "cpu", "0" * 64)
    assert venvs.wanted(table, "cpu", "1" * 64).base != first.base
    assert venvs.wanted(table, "cpu", "0" * 64) == first
    monkeypatch.setattr(pins, "ROOT", tmp_path)
    assert venvs.wanted(table, "cpu", "0" * 64).base != first.base


def test_an_edit_of_the_extension_reinstalls_a_wheel_but_not_an_editable(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    module = tmp_path / "src" / "module.py"
    module.write_text("one")
    monkeypatch.setattr(venvs, "EXTENSION", tmp_path)
    table = pins.load()
    before = {variant: venvs.wanted(table, variant, "0").extension for variant in pins.VARIANTS}
    module.write_text("two")
    assert venvs.wanted(table, "cpu", "0").extension == before["cpu"]
    assert venvs.wanted(table, "cuda", "0").extension != before["cuda"]
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert venvs.wanted(table, "cpu", "0").extension != before["cpu"]


def test_other_cubins_reinstall_a_wheel(monkeypatch, tmp_path: Path) -> None:
    """They lie outside of the extension; its link to their manifest, which holds their hashes, brings them in."""
    link = venvs.EXTENSION / "src" / "moet_w2" / "kernels" / "prebuilt" / "MANIFEST.json"
    assert link.resolve() == pins.ROOT / "kernels" / "MANIFEST.json"
    copy = tmp_path / "runtime_ext" / link.relative_to(venvs.EXTENSION)
    copy.parent.mkdir(parents=True)
    copy.symlink_to(os.readlink(link))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "runtime_ext" / "pyproject.toml").touch()
    monkeypatch.setattr(venvs, "EXTENSION", tmp_path / "runtime_ext")
    digests = set()
    for text in ("{}", '{"cubins": 1}'):
        (tmp_path / "kernels" / "MANIFEST.json").write_text(text)
        digests.add(venvs.wanted(pins.load(), "cuda", "0").extension)
    assert len(digests) == 2


def test_publishing_keeps_what_a_running_server_reads(native: Path) -> None:
    folders = [native / "envs" / f"cpu-{name * 12}" for name in "abc"]
    for folder in folders:
        folder.mkdir(parents=True)
        venvs.publish(native, "cpu", folder)
        assert (native / "venv-cpu").resolve() == folder
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_a_folder_in_the_links_place_is_not_touched(native: Path) -> None:
    (native / "venv-cpu").mkdir()
    with pytest.raises(BuildError, match="not a link"):
        venvs.publish(native, "cpu", native / "envs" / "cpu-a")
    assert (native / "venv-cpu").is_dir()


def test_too_little_disk_is_said_before_anything_is_installed(native: Path) -> None:
    with pytest.raises(BuildError, match="GiB free, the environment needs"):
        venvs.require_disk(native, 1 << 62)


def test_a_lock_of_other_pins_stops_the_build(native: Path, steps: list[str]) -> None:
    table = pins.load()
    table.table["packages"]["cpu"]["pytest"] = "0.0.1"
    with pytest.raises(BuildError, match="cpu.lock does not belong to this pins.toml"):
        venvs.ensure(table, native, BUILT, "cpu")
    assert steps == []


@pytest.mark.parametrize("variant", pins.VARIANTS)
def test_the_locks_belong_to_the_pins_and_hold_every_direct_package(variant: str) -> None:
    table = pins.load()
    lockfile.check(table, variant)
    rows = lockfile.lock_path(variant).read_text().splitlines()
    packages = {**table.get("packages.both"), **table.get(f"packages.{variant}")}
    packages["torch"] = table.get(f"torch.{variant}.version")
    for name, version in packages.items():
        assert any(row.startswith(f"{name}=={version} --hash=sha256:") for row in rows), name
    assert f"torch=={packages['torch']} --hash=sha256:{table.get(f'torch.{variant}.sha256')}" in rows


def test_a_report_becomes_sorted_hashed_lines() -> None:
    def item(name: str) -> dict:
        return {
            "metadata": {"name": name, "version": "1"},
            "download_info": {"archive_info": {"hashes": {"sha256": "ab"}}},
        }

    text = lockfile.render({"install": [item("Zeta_x"), item("alpha")]}, "digest")
    assert text.splitlines()[1:] == [
        "# inputs digest",
        "alpha==1 --hash=sha256:ab",
        "zeta-x==1 --hash=sha256:ab",
    ]
