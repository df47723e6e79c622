"""Excluded layers on the real server: a short form of the run in demo/results/exclusion.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo import evaluate_exclusion

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.server


def test_no_excluded_row_is_read_resident_or_counted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.evaluate_exclusion", "--requests", "96", "--slots", "12"]
    command += ["--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["slots"] == 12 and document["excluded"]["requests"] == 96
    assert evaluate_exclusion.problems(document["excluded"], 12) == []
