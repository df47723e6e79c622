"""The ``moet`` command and who reads what it prints."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "moet_w2.cli", "plan", "--cards"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # before anything is printed
        said = process.stderr.read()
    assert said == b"" and process.returncode == 128 + signal.SIGPIPE
