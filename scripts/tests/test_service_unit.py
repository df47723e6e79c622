"""The systemd example: what it starts exists, what it allows is what the server needs, and systemd reads it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "scripts" / "systemd"
UNIT = FOLDER / "moet-ds4flash.service"
CHECKOUT = "/opt/moet/"
ANALYZE = shutil.which("systemd-analyze")

# systemd.exec(5): each takes away a device, a file or a right that serving on a GPU needs.
FORBIDDEN = {
    "PrivateDevices": "yes",
    "ProtectClock": "yes",
    "MemoryDenyWriteExecute": "yes",
    "ProcSubset": "pid",
    "PrivateNetwork": "yes",
    "PrivateUsers": "yes",
}
MAPPED_LAYER_CALLS = ("mbind", "move_pages", "mlock", "sched_setaffinity")


def read(path: Path) -> dict[str, list[str]]:
    """Settings of a unit, each with all its values in order; comments left out."""
    settings: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#;[":
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


@pytest.fixture
def unit() -> dict[str, list[str]]:
    return read(UNIT)


def test_starts_a_script_that_exists_with_a_profile_that_exists(unit):
    program, flag, profile = unit["ExecStart"][0].split()
    script = REPOSITORY / program.removeprefix(CHECKOUT)
    assert program.startswith(CHECKOUT) and os.access(script, os.X_OK)
    assert flag == "--profile" and (REPOSITORY / "bench" / "recipes" / f"pro6000-{profile}.yaml").is_file()


def test_variables_are_ones_that_the_launcher_reads(unit):
    given = {pair.partition("=")[0] for value in unit["Environment"] for pair in value.split()}
    given |= set(re.findall(r"^#([A-Z_]+)=", (FOLDER / "moet-ds4flash.env").read_text(), re.M))
    reader = (REPOSITORY / "runtime_ext" / "src" / "moet_w2" / "overrides.py").read_text()
    of_others = {"HOME", "VLLM_API_KEY", "CUDA_HOME"}
    assert {name for name in given - of_others if f'"{name}"' not in reader} == set()
    assert given >= {"MODEL_PATH", "CACHE_ROOT", "W2_AUDIT_PATH", "VLLM_API_KEY", "HOST", "PORT"}


def test_locks_memory_restarts_after_a_crash_and_has_time_to_stop(unit):
    assert unit["LimitMEMLOCK"] == ["infinity"]
    # 143 is SIGTERM before the server was ready; a crash, 1, must stay one.
    assert unit["Restart"] == ["on-failure"] and unit["SuccessExitStatus"] == ["143"]
    assert unit["KillMode"] == ["mixed"] and int(unit["TimeoutStopSec"][0]) >= 10


def test_no_secret_stands_in_a_file_that_everybody_reads(unit):
    assert unit["EnvironmentFile"] == ["-/etc/moet-ds4flash.env"]
    assert not any("KEY" in value for value in unit["Environment"])
    assert re.findall(r"^VLLM_API_KEY", (FOLDER / "moet-ds4flash.env").read_text(), re.M) == []


def broken_by(settings: dict[str, list[str]]) -> list[str]:
    return [name for name, value in FORBIDDEN.items() if value in settings.get(name, [])]


def test_hardening_leaves_the_gpu_alone(unit, tmp_path):
    assert broken_by(unit) == [] and "DevicePolicy" not in unit and "SystemCallFilter" not in unit
    spoiled = tmp_path / "spoiled.service"
    spoiled.write_text(UNIT.read_text().replace("[Install]", "PrivateDevices=yes\n[Install]"))
    assert broken_by(read(spoiled)) == ["PrivateDevices"]


def test_what_the_server_writes_can_be_written(unit):
    cache, run = unit["CacheDirectory"][0], unit["RuntimeDirectory"][0]
    writable = [f"/var/cache/{cache}", f"/run/{run}", *unit["ReadWritePaths"]]
    given = dict(pair.split("=", 1) for value in unit["Environment"] for pair in value.split())
    written = [given["CACHE_ROOT"], given["HOME"], given["W2_AUDIT_PATH"], f"{CHECKOUT}.native/run"]
    assert unit["ProtectSystem"] == ["strict"]
    assert [path for path in written if not any(path.startswith(place) for place in writable)] == []


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
def test_systemd_reads_it(tmp_path):
    def verify(text: str) -> str:
        copy = tmp_path / UNIT.name
        copy.write_text(text)
        done = subprocess.run([ANALYZE, "verify", copy], capture_output=True, text=True, timeout=60)
        return f"{done.returncode} {done.stderr}"

    here = UNIT.read_text().replace(CHECKOUT, f"{REPOSITORY}/")
    assert "moet-ds4flash" not in verify(here)
    assert "'LimitMEMLOK'" in verify(here.replace("LimitMEMLOCK", "LimitMEMLOK"))
    assert "is not executable" in verify(here.replace("serve-pro6000", "serve-nothing"))


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
def test_the_filter_that_it_names_lets_mapped_layers_be():
    def calls(group: str) -> set[str]:
        text = subprocess.run([ANALYZE, "syscall-filter", group], capture_output=True, text=True, timeout=60).stdout
        words = [line.strip() for line in text.splitlines()[1:] if not line.strip().startswith("#")]
        return {call for word in words for call in (calls(word) if word.startswith("@") else {word})}

    assert "@system-service" in UNIT.read_text()
    assert {call for call in MAPPED_LAYER_CALLS if call not in calls("@system-service")} == set()
    assert "mbind" not in calls("@basic-io")
