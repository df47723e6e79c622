"""serve-demo.sh, demo.sh and what stops a server: honest exit codes, one clear line, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stop_session
from audit_document import make
from fake_server import Behaviour, serve
from server_support import RECIPE, REPOSITORY, clean_environment

from moet_w2 import recipe
from validation.local import free_port

V2 = "INFO Using V2 Model Runner"


@pytest.fixture
def scripts(tmp_path):
    """Runs a script with `moet serve` replaced by the fake server; every answer and log line can be spoiled."""
    fake = tmp_path / "env" / "bin"
    fake.mkdir(parents=True)
    for name, words in (("python", ""), ("moet", f" {Path(__file__).with_name('fake_moet.py')}")):
        (fake / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (fake / name).chmod(0o755)
    (tmp_path / "audit.json").write_text(json.dumps(make(recipe.load(RECIPE))))

    def run(name: str, *words: str, behaviour: dict | None = None, log: str = V2, **more: str):
        environment = clean_environment(
            MOET_ENV=str(tmp_path / "env"),
            MOET_RUN_DIR=str(tmp_path / "run"),
            PORT=more.pop("PORT", str(free_port())),
            FAKE_AUDIT=str(tmp_path / "audit.json"),
            FAKE_BEHAVIOUR=json.dumps(behaviour or {}),
            FAKE_LOG=log,
            PYTHONPATH=str(REPOSITORY),
            **more,
        )
        script = REPOSITORY / "scripts" / name
        return subprocess.run([script, *words], env=environment, capture_output=True, text=True, timeout=120)

    yield run
    run("serve-demo.sh", "--stop")


def leaders() -> set[str]:
    """Fake servers that run."""
    found = set()
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"fake_moet.py") for word in words):
            found.add(cmdline.parent.name)
    return found


def test_demo_says_what_it_did_and_stops(scripts):
    before = leaders()
    done = scripts("demo.sh")
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("ready after ", "Using V2 Model Runner", '"28"', '{"city": "Paris"}', "mapped layers    2, 3"):
        assert text in done.stdout
    assert done.stdout.endswith("stopped; everything holds\n")
    assert leaders() == before


def test_demo_takes_no_arguments(scripts, tmp_path):
    for flag in ("-h", "--help"):
        shown = scripts("demo.sh", flag)
        assert (shown.returncode, shown.stderr) == (0, "") and "scripts/demo.sh [--help]" in shown.stdout
    refused = scripts("demo.sh", "--port", "1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("demo.sh: error: it takes no arguments, got: --port 1; ")
    assert not (tmp_path / "run").exists()


def test_demo_fails_when_a_check_fails(scripts):
    before = leaders()
    done = scripts("demo.sh", behaviour={"answer": "29"})
    assert done.returncode == 1
    assert "validate: FAIL: arithmetic: " in done.stderr and "everything holds" not in done.stdout
    assert leaders() == before


def test_demo_fails_on_another_runner(scripts):
    before = leaders()
    done = scripts("demo.sh", log="INFO Using V1 Model Runner")
    assert done.returncode == 1
    assert done.stderr == "demo.sh: error: the server's log does not say 'Using V2 Model Runner'\n"
    assert leaders() == before


def test_background_then_stop(scripts, tmp_path):
    done = scripts("serve-demo.sh", "--background")
    assert done.returncode == 0 and done.stdout.startswith("ready after ")
    pid = int((tmp_path / "run" / "server.pid").read_text())
    assert pid in stop_session.members(pid)
    again = scripts("serve-demo.sh", "--background")
    assert again.returncode == 1 and f"already runs here (process {pid})" in again.stderr
    assert scripts("serve-demo.sh", "--stop").returncode == 0
    assert stop_session.members(pid) == []
    once_more = scripts("serve-demo.sh", "--stop")
    assert once_more.returncode == 0 and "no server was started here" in once_more.stderr


def test_background_does_not_take_another_servers_answers_for_its_own(scripts, tmp_path):
    with serve(Behaviour()) as url:
        done = scripts("serve-demo.sh", "--background", PORT=url.rpartition(":")[2])
    assert done.returncode == 1
    wanted = f"serve-demo.sh: error: a server answers at {url} already; stop it, or choose another PORT"
    assert done.stderr.splitlines()[-1] == wanted
    assert not (tmp_path / "run" / "server.pid").exists()


def test_background_ends_with_2_on_bad_input(scripts, tmp_path):
    done = scripts("serve-demo.sh", "--background", "--no-such-option")
    assert done.returncode == 2 and "--no-such-option" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run" / "server.pid").exists()
    for word in ("--dry-run", "--print=shell"):
        done = scripts("serve-demo.sh", "--background", word)
        wanted = f"serve-demo.sh: error: {word} starts no server; leave out --background\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", wanted)


def test_background_shows_the_launchers_help(scripts, tmp_path):
    done = scripts("serve-demo.sh", "--background", "--help")
    assert (done.returncode, done.stderr) == (0, "") and "usage: moet serve" in done.stdout
    assert not (tmp_path / "run" / "server.pid").exists()


def test_background_reports_why_a_server_did_not_start(tmp_path):
    """With the real launcher: its one line comes through, at once, and no process file stays."""
    environment = clean_environment(
        MOET_RUN_DIR=str(tmp_path), MODEL_PATH=str(tmp_path / "absent"), PORT=str(free_port())
    )
    start = time.monotonic()
    done = subprocess.run(
        [REPOSITORY / "scripts" / "serve-demo.sh", "--background"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and time.monotonic() - start < 30
    assert f"moet: error: checkpoint: model folder {tmp_path}/absent does not exist" in done.stderr
    assert f"did not become ready; all of its log: {tmp_path}/server.log" in done.stderr
    assert not (tmp_path / "server.pid").exists()


def test_background_stops_a_server_that_is_late(scripts, tmp_path):
    before = leaders()
    done = scripts("serve-demo.sh", "--background", behaviour={"health_status": 503}, MOET_READY_SECONDS="2")
    assert done.returncode == 1 and "gave no 200 within 2 s" in done.stderr
    assert leaders() == before


@pytest.mark.parametrize(
    ("name", "setup", "status"),
    [
        ("serve-demo.sh", "make setup", 1),
        ("demo.sh", "make setup", 1),
        ("validate-api.sh", "make setup", 1),
        ("serve-pro6000-ds4flash.sh", "scripts/build-native.sh cuda", 2),
    ],
)
def test_without_an_environment_setup_is_named(scripts, name, setup, status, tmp_path):
    environment = clean_environment(MOET_ENV=str(tmp_path / "nowhere"))
    done = subprocess.run([REPOSITORY / "scripts" / name], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr == f"{name}: error: no environment at {tmp_path}/nowhere; make it with: {setup}\n"


@pytest.fixture
def launcher(tmp_path):
    """Runs the launcher of the 96 GB card in a copy of scripts/, with an environment that prints its words."""
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")

    def run(*words: str, kinds: tuple[str, ...] = ("cuda",)):
        for kind in kinds:
            folder = tmp_path / ".native" / f"venv-{kind}" / "bin"
            folder.mkdir(parents=True)
            for program in ("moet", "python"):
                (folder / program).write_text(f"#!/bin/sh\nprintf '%s|' {kind} \"$@\"\n")
                (folder / program).chmod(0o755)
        environment = clean_environment()
        environment.pop("MOET_ENV", None)
        script = tmp_path / "scripts" / "serve-pro6000-ds4flash.sh"
        done = subprocess.run([script, *words], env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    ("words", "profile", "rest"),
    [
        ((), "512k", ""),
        (("--profile", "300k"), "300k", ""),
        (("--profile=512k", "--dry-run"), "512k", "--dry-run|"),
        (("--stock", "--profile", "300k", "--api-key-file", "a b"), "300k", "--stock|--api-key-file|a b|"),
    ],
)
def test_launcher_chooses_a_recipe_and_passes_the_rest(launcher, tmp_path, words, profile, rest):
    recipe_file = f"{tmp_path}/bench/recipes/pro6000-{profile}.yaml"
    assert launcher(*words) == (0, f"cuda|serve|--recipe|{recipe_file}|{rest}", "")
    assert (REPOSITORY / "bench" / "recipes" / f"pro6000-{profile}.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--profile", "1m"), "--profile '1m' is not a profile; use one of: 512k 300k"),
        (("--profile", "*"), "--profile '*' is not a profile; use one of: 512k 300k"),
        (("--profile=",), "--profile '' is not a profile; use one of: 512k 300k"),
        (("--dry-run", "--profile"), "--profile needs a value; use one of: 512k 300k"),
        (("--recipe", "x"), "--recipe is not for this script: choose a --profile, or call `moet serve` itself"),
    ],
)
def test_launcher_refuses_what_is_no_profile(launcher, words, message):
    assert launcher(*words) == (2, "", f"serve-pro6000-ds4flash.sh: error: {message}\n")


def test_launcher_does_not_serve_a_gpu_from_the_environment_for_cpus(launcher, tmp_path):
    status, out, err = launcher(kinds=("cpu",))
    assert (status, out) == (2, "")
    assert f"no environment at {tmp_path}/.native/venv-cuda; make it with: scripts/build-native.sh cuda" in err


def test_launcher_help_says_what_is_what(launcher):
    status, out, _ = launcher("--help")
    assert status == 0 and out.startswith("Serves DeepSeek-V4-Flash-0731") and out.endswith("|--help|")
    assert "set -euo pipefail" not in out


def test_launcher_help_needs_no_environment(launcher):
    status, out, err = launcher("--help", kinds=())
    assert (status, err) == (0, "") and out.startswith("Serves DeepSeek-V4-Flash-0731")
    assert out.endswith("once there is an environment: scripts/build-native.sh cuda\n")


@pytest.mark.parametrize(("kinds", "chosen"), [(("cpu", "cuda"), "cuda"), (("cpu",), "cpu"), (("cuda",), "cuda")])
def test_validation_takes_the_environment_that_is_there(launcher, tmp_path, kinds, chosen):
    launcher("--help", kinds=kinds)
    environment = clean_environment()
    environment.pop("MOET_ENV", None)
    script = tmp_path / "scripts" / "validate-api.sh"
    done = subprocess.run([script, "--json"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{chosen}|-m|validation.smoke|--json|"


def test_a_number_given_to_another_process_since_is_left_alone(scripts, tmp_path):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "server.pid").write_text(f"{stranger.pid}\n")
        done = scripts("serve-demo.sh", "--stop")
        assert done.returncode == 0 and "is not the server that was started here" in done.stderr
        assert stranger.poll() is None and not (tmp_path / "run" / "server.pid").exists()
        (tmp_path / "run" / "server.pid").write_text(f"{stranger.pid}\n")
        assert scripts("serve-demo.sh", "--background").returncode == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("up", flush=True)
time.sleep(600)
"""


def test_what_ignores_the_request_to_stop_is_killed_and_said():
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "up\n"
        assert len(stop_session.members(process.pid)) == 2
        killed = stop_session.stop(process.pid, patience=0.5)
        assert len(killed) == 2 and process.pid in killed
        assert stop_session.members(process.pid) == []
    finally:
        process.kill()
        process.wait()


def test_a_process_of_another_session_is_left_alone():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        words = [sys.executable, REPOSITORY / "scripts" / "lib" / "stop_session.py", str(process.pid), "1"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 2 and "leads no session of its own; it is left alone" in done.stderr
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_stop_says_when_it_had_to_kill(scripts, monkeypatch):
    scripts("serve-demo.sh", "--background", FAKE_STUBBORN="1")
    done = scripts("serve-demo.sh", "--stop", MOET_STOP_SECONDS="1")
    assert done.returncode == 1 and "not gone 1 s after SIGTERM, killed: " in done.stderr


def test_interrupt_while_waiting_stops_the_server(tmp_path, scripts):
    before = leaders()
    environment = clean_environment(
        MOET_ENV=str(tmp_path / "env"),
        MOET_RUN_DIR=str(tmp_path / "run"),
        PORT=str(free_port()),
        FAKE_AUDIT=str(tmp_path / "audit.json"),
        FAKE_BEHAVIOUR='{"health_status": 503}',
        FAKE_LOG=V2,
        PYTHONPATH=str(REPOSITORY),
    )
    process = subprocess.Popen([REPOSITORY / "scripts" / "demo.sh"], env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    while not leaders() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert leaders() - before
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C reaches every process of a terminal
    assert process.wait(timeout=60) != 0
    assert leaders() == before
