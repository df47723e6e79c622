"""serve-demo.sh looks at what it was given before it starts or stops anything; the rest is in validation/tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "serve-demo.sh"


@pytest.fixture
def run(tmp_path: Path):
    """Runs it with programs that leave a file when they are called, beside a server that seems to run."""
    programs = tmp_path / "env" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "moet"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 1\n")
        (programs / name).chmod(0o755)
    (tmp_path / "run").mkdir()

    def call(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        places = {"MOET_ENV": str(tmp_path / "env"), "MOET_RUN_DIR": str(tmp_path / "run")}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOET_", "W2_"))}
        return subprocess.run([SCRIPT, *words], env=kept | places | more, capture_output=True, text=True, timeout=60)

    return call


@pytest.mark.parametrize("words", ["--help", "now please"])
def test_stop_takes_nothing_after_it(run, tmp_path: Path, words: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "moet serve "], stdin=subprocess.PIPE) as server:
        (tmp_path / "run" / "server.pid").write_text(str(server.pid))
        done = run("--stop", *words.split())
        said = f"serve-demo.sh: error: --stop takes nothing after it, got: {words}; nothing was stopped\n"
        assert (done.returncode, done.stderr) == (2, said)
        assert server.poll() is None and (tmp_path / "run" / "server.pid").exists()
        assert not (tmp_path / "called").exists()
        server.kill()


@pytest.mark.parametrize("value", ["abc", "-5", "nan", "3 min"])
@pytest.mark.parametrize(
    ("how", "name"),
    [("--background", "MOET_READY_SECONDS"), ("--background", "MOET_STOP_SECONDS"), ("--stop", "MOET_STOP_SECONDS")],
)
def test_what_is_no_number_of_seconds_is_refused_first(run, tmp_path: Path, how: str, name: str, value: str) -> None:
    (tmp_path / "run" / "server.pid").write_text("1")
    done = run(how, **{name: value})
    said = f"serve-demo.sh: error: {name}={value} is no number of seconds; give one, such as 60, or unset it\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not (tmp_path / "called").exists()


def test_a_number_of_seconds_is_taken(run, tmp_path: Path) -> None:
    assert run("--background", MOET_READY_SECONDS="2.5").returncode != 2 and (tmp_path / "called").exists()
