"""Waiting for a server ends when it answers, when it dies and when time is up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_server import Behaviour, serve

from validation import ready

REPOSITORY = Path(__file__).resolve().parents[2]


def test_returns_the_seconds_waited():
    with serve(Behaviour(healthy_after=2)) as url:
        assert 2 * ready.POLL_SECONDS <= ready.wait(url, limit=10) < 5


def test_time_is_up():
    with (
        serve(Behaviour(health_status=500)) as url,
        pytest.raises(ready.NotReady, match=r"within 0.3 s \(status 500\)"),
    ):
        ready.wait(url, limit=0.3)


def test_process_that_ends_ends_the_waiting():
    with serve(Behaviour(health_status=503)) as url:
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
        start = time.monotonic()
        with pytest.raises(ready.NotReady, match=f"pid {process.pid}.* ended after"):
            ready.wait(url, limit=60, pid=process.pid)  # dead but not collected: a zombie has ended too
        assert time.monotonic() - start < 10
        process.wait()
        with pytest.raises(ready.NotReady, match="ended after"):
            ready.wait(url, limit=60, pid=process.pid)


def test_an_answer_is_not_taken_for_that_of_a_process_that_has_ended():
    with serve(Behaviour()) as url:  # another server, healthy at once
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
        process.wait()
        with pytest.raises(ready.NotReady, match="ended after"):
            ready.wait(url, limit=60, pid=process.pid)


def test_command_line():
    words = [sys.executable, "-m", "validation.ready", "--timeout", "0.2", "--base-url"]
    with serve(Behaviour()) as url:
        good = subprocess.run([*words, url], capture_output=True, text=True, cwd=REPOSITORY)
    assert good.returncode == 0 and float(good.stdout) < 1
    bad = subprocess.run([*words, url], capture_output=True, text=True, cwd=REPOSITORY)
    assert bad.returncode == 1 and bad.stderr.startswith("ready: ") and bad.stderr.count("\n") == 1


def test_ctrl_c_is_one_line():
    behaviour = Behaviour(health_status=503)
    with serve(behaviour) as url:
        words = [sys.executable, "-m", "validation.ready", "--timeout", "60", "--base-url", url]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1] == "ready: interrupted\n" and process.returncode == 130
