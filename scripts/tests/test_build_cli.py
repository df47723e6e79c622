"""The commands a person types: usage, exit status, and the verbs of the Makefile."""

from __future__ import annotations

import configparser
import errno
import os
import subprocess
from pathlib import Path

import build
import pins
import pytest
from build_errors import BuildError

ROOT = pins.ROOT
SCRIPT = ROOT / "scripts" / "build-native.sh"
VERBS = "setup demo serve-demo validate test lint check docs-check kernels patch nix nix-check clean".split()


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [("gpu",), ("cpu", "--fast"), ("cpu", "--configure-only")])
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    done = run(str(SCRIPT), *arguments)
    assert done.returncode == 2
    assert "usage: build-native.sh" in done.stderr


def test_help_names_variants_and_exit_status() -> None:
    text = run(str(SCRIPT), "--help").stdout
    assert all(word in text for word in ("cpu,cuda,cuda-native", "--check", "Exit status: 0 done"))


def test_a_python_of_another_version_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run(str(SCRIPT), "cpu", MOET_PYTHON=str(old))
    assert done.returncode == 3
    assert done.stderr == f"build-native.sh: error: MOET_PYTHON={old} is not the Python that pins.toml names\n"


def test_no_python_at_all_is_one_clear_line(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "basename", "env"):
        (tmp_path / tool).symlink_to(next(Path(d) / tool for d in ("/usr/bin", "/bin") if (Path(d) / tool).exists()))
    done = run(str(SCRIPT), "cpu", PATH=str(tmp_path), MOET_PYTHON="")
    assert done.returncode == 3
    assert "no Python of the version in pins.toml" in done.stderr and len(done.stderr.splitlines()) == 1


def test_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    with pytest.raises(BuildError, match="this is Linux riscv64") as caught:
        build.require_platform(pins.load())
    assert caught.value.code == 3


def test_check_reports_a_missing_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.check_wheel_variant(pins.load(), "cpu", tmp_path) == 1
    assert "is missing or not of these pins" in capsys.readouterr().out


def test_an_interrupted_build_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "NATIVE", tmp_path)
    monkeypatch.setattr(build, "build_wheel_variant", interrupt)
    assert build.main(["cpu"]) == 130
    assert capsys.readouterr().err == "build: interrupted; run the same command again, what was made stays\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_tree_of_another_user_is_one_line(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(build, "NATIVE", tmp_path)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(build.pin_table, "load", lambda: None)
    assert build.main(["cpu"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"build: error: {tmp_path} cannot be written ({os.strerror(number)}); build in a checkout")
    assert told.count("\n") == 1


def test_help_lists_exactly_the_verbs() -> None:
    lines = run("make", "-s", "help").stdout.splitlines()
    listed = [line.split()[0] for line in lines]
    assert listed == ["help", *VERBS]
    assert all(len(line.split()) > 2 for line in lines)


def test_setup_a_second_time_is_quick() -> None:
    done = subprocess.run(["make", "-s", "setup"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "already up to date" in done.stdout, done.stdout + done.stderr


def test_every_tracked_test_is_in_a_folder_that_make_test_runs() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "pytest.ini")
    folders = config["pytest"]["testpaths"].split()
    tracked = run("git", "ls-files", "*/test_*.py").stdout.split()
    assert tracked
    assert [name for name in tracked if not name.startswith(tuple(f"{folder}/" for folder in folders))] == []


def test_ci_runs_the_verbs_of_a_person() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    verbs = [line.split()[1] for line in text.splitlines() if line.strip().startswith("make ")]
    assert verbs == ["check", "nix", "test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_check_compiles_the_kernels_again() -> None:
    assert "\nscripts/kernels.sh --check\n" in run("make", "--no-print-directory", "-n", "check").stdout
    assert run("make", "--no-print-directory", "-n", "kernels").stdout == "scripts/kernels.sh\n"


def test_kernels_has_exit_status_2_for_wrong_usage() -> None:
    done = run("scripts/kernels.sh", "--checks")
    assert done.returncode == 2 and "usage: kernels.sh" in done.stderr


def test_clean_refuses_while_the_demo_server_runs(tmp_path: Path) -> None:
    """On a copy of the two scripts: a live process in the pid file stops it, a dead one does not."""
    (tmp_path / "scripts" / "lib").mkdir(parents=True)
    for name in ("scripts/clean.sh", "scripts/lib/common.sh"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    pid_file = tmp_path / ".native" / "run" / "demo" / "server.pid"
    pid_file.parent.mkdir(parents=True)
    pid_file.write_text(f"{os.getpid()}\n")
    command = ["bash", str(tmp_path / "scripts" / "clean.sh")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and f"process {os.getpid()}" in done.stderr and pid_file.exists()
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    pid_file.write_text(f"{gone.pid}\n")
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert not (tmp_path / ".native").exists()
