"""What of the flake needs no Nix: the lock file, the programs that derivations run, and how its files begin."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pins as pin_table
import pytest
from build_errors import BuildError

from nix import cmake_environment, install_wheels, lock, patched_source
from nix.checks import compare_unit
from nix.tests import nix_host
from nix.tests.nixpkgs import copy_distributions

ROOT = pin_table.ROOT
UNIT = (ROOT / "scripts" / "systemd" / "moet-ds4flash.service").read_text()


@pytest.fixture
def pins() -> pin_table.Pins:
    return pin_table.load()


def test_every_derivation_begins_with_its_purpose():
    files = sorted((ROOT / "nix").rglob("*.nix"))
    assert len(files) > 20
    without = [str(path) for path in files if not path.read_text().startswith("# ") and path.name != "flake.nix"]
    assert without == []


def test_the_lock_is_what_the_pins_say(pins):
    assert lock.differences(json.loads((ROOT / "flake.lock").read_text()), lock.lock(pins)) == []
    text = (ROOT / "flake.nix").read_text()
    original = lock.lock(pins)["nodes"]["nixpkgs"]["original"]
    assert f'"github:{original["owner"]}/{original["repo"]}/{original["ref"]}"' in text
    assert f'"git+{pins.get("deepgemm.repository")}?submodules=1"' in text


def test_what_nix_adds_to_a_lock_is_no_difference_and_another_revision_is(pins):
    wanted, found = lock.lock(pins), lock.lock(pins)
    found["nodes"]["nixpkgs"]["locked"] |= {"narHash": "sha256-x", "lastModified": 1}
    assert lock.differences(found, wanted) == []
    found["nodes"]["nixpkgs"]["locked"]["rev"] = "0" * 40
    assert lock.differences(found, wanted) == [
        f"flake.lock has nixpkgs at {'0' * 40}, pins.toml says {pins.get('nixpkgs.revision')}"
    ]
    del found["nodes"]["deepgemm"]
    assert lock.differences(found, wanted) == ["flake.lock has other inputs than flake.nix"]


def test_the_lock_is_written_and_checked(tmp_path, capsys):
    (tmp_path / "pins.toml").write_bytes((ROOT / "pins.toml").read_bytes())
    assert lock.main(["--check"], tmp_path) == 1 and "run `python3 nix/lock.py`" in capsys.readouterr().err
    assert lock.main([], tmp_path) == 0
    assert (tmp_path / "flake.lock").read_text() == (ROOT / "flake.lock").read_text()
    assert lock.main(["--check"], tmp_path) == 0
    assert lock.main(["--chekc"], tmp_path) == 2


def test_a_patch_for_another_source_leaves_nothing_behind(tmp_path, monkeypatch, pins):
    def unpack(archive: Path, into: Path, prefix: str) -> None:
        (into / prefix).mkdir(parents=True)

    monkeypatch.setattr(patched_source, "unpack", unpack)
    with pytest.raises(BuildError, match="does not apply cleanly"):
        patched_source.write(tmp_path / "archive", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert patched_source.main([]) == 2


def test_a_wheel_gets_its_name_from_its_metadata(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        archive.writestr("some_package-1.2.dist-info/METADATA", "Name: some.package\nVersion: 1.2\n")
        archive.writestr("other/vendored-3.dist-info/METADATA", "Name: vendored\nVersion: 3\n")
    assert install_wheels.file_name(tmp_path / "x") == "some_package-1.2-py3-none-any.whl"


@pytest.fixture
def cmake_tree(tmp_path) -> Path:
    """A tree that fetches two repositories, and a copy of each."""
    external = tmp_path / "tree" / "cmake" / "external_projects"
    external.mkdir(parents=True)
    (tmp_path / "tree" / "CMakeLists.txt").write_text(
        'ENV{VLLM_CUTLASS_SRC_DIR}\nset(REVISION "v1")\n  GIT_REPOSITORY https://x.invalid/cutlass.git\n'
        "  GIT_TAG ${REVISION}\n"
    )
    (external / "triton_kernels.cmake").write_text(
        "ENV{TRITON_KERNELS_SRC_DIR}\n GIT_REPOSITORY https://x.invalid/triton.git\n GIT_TAG v2\n"
    )
    for name in ("cutlass", "triton/python/triton_kernels/triton_kernels"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
        (tmp_path / name / "file").chmod(0o444)
    return tmp_path / "tree"


def test_cmake_is_given_writable_copies(cmake_tree, tmp_path, capsys):
    given = {"CMakeLists.txt": "cutlass", "cmake/external_projects/triton_kernels.cmake": "triton"}
    pairs = [f"{file}={tmp_path / name}" for file, name in given.items()]
    assert cmake_environment.main(str(cmake_tree), str(tmp_path / "copies"), *pairs) == 0
    told = dict(line.removeprefix("export ").split("=") for line in capsys.readouterr().out.splitlines())
    assert set(told) == {"VLLM_CUTLASS_SRC_DIR", "TRITON_KERNELS_SRC_DIR"}
    for folder in map(Path, told.values()):
        (folder / "file").write_text("writable")
        assert folder.is_relative_to(tmp_path / "copies")


def test_a_repository_that_is_not_pinned_is_refused(cmake_tree, tmp_path, capsys):
    one = f"CMakeLists.txt={tmp_path / 'cutlass'}"
    assert cmake_environment.main(str(cmake_tree), str(tmp_path / "copies"), one) == 1
    assert "vLLM fetches triton (cmake/external_projects/triton_kernels.cmake)" in capsys.readouterr().err
    other = f"cmake/external_projects/triton_kernels.cmake={tmp_path / 'triton'}"
    assert cmake_environment.main(str(cmake_tree), str(tmp_path / "copies"), one, other, "gone.cmake=/x") == 1
    assert "sources for gone.cmake, which fetch nothing" in capsys.readouterr().err


def test_no_source_is_given_twice(pins):
    files = {table["file"] for table in pins.get("cmake_sources").values()}
    listed = re.findall(
        r'"(cmake/external_projects/\w+\.cmake)" = held', (ROOT / "nix" / "cmake-sources.nix").read_text()
    )
    assert len(listed) == 1 and not files & set(listed)


def service() -> dict:
    """The service as JSON, such as the example unit describes."""
    unit = compare_unit.read_unit(UNIT)
    settings = {name: " ".join(values) for name, values in unit.items()}
    kept = set(settings) - compare_unit.OF_A_CHECKOUT - compare_unit.STARTED
    start = "/s/bin/moet serve --recipe /s/pro6000-300k.yaml"
    return {
        "unitConfig": {},
        "serviceConfig": {name: settings[name] for name in kept} | {"ExecStart": start, "WorkingDirectory": "/run"},
        "environment": dict.fromkeys(["MODEL_PATH", "CACHE_ROOT", "HOME", "W2_AUDIT_PATH"], "x"),
        "after": settings["After"].split(),
        "wants": [settings["Wants"]],
        "wantedBy": [settings["WantedBy"]],
        "description": settings["Description"],
    }


def test_a_service_like_the_unit_has_no_difference():
    assert compare_unit.differences(compare_unit.read_unit(UNIT), service()) == []


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("serviceConfig", "LimitMEMLOCK", "8G", "LimitMEMLOCK: the unit has 'infinity', the module '8G'"),
        ("serviceConfig", "PrivateDevices", True, "PrivateDevices: the unit has None, the module 'yes'"),
        ("serviceConfig", "ExecStart", "/bin/true", "ExecStart: /bin/true"),
        ("environment", "MODEL_PATH", None, "Environment: the module does not set MODEL_PATH"),
    ],
)
def test_each_difference_is_named(part, name, value, said):
    changed = service()
    changed[part] = {key: old for key, old in changed[part].items() if key != name}
    if value is not None:
        changed[part][name] = value
    assert compare_unit.differences(compare_unit.read_unit(UNIT), changed) == [said]


def test_a_python_of_the_stand_in_has_what_was_asked_for_and_no_more(tmp_path):
    assert copy_distributions.main(str(tmp_path), "jsonschema") == 0
    code = "import sys, jsonschema; sys.exit(0 if jsonschema.__file__.startswith(sys.argv[1]) else 1)"
    base = [sys._base_executable, "-S", "-s", "-c"]
    environment = {"PYTHONPATH": str(tmp_path)}
    assert subprocess.run([*base, code, str(tmp_path)], env=environment).returncode == 0
    assert subprocess.run([*base, "import torch"], env=environment, capture_output=True).returncode == 1
    assert "torch" in {found.metadata["Name"] for found in importlib.metadata.distributions()}
    assert copy_distributions.main(str(tmp_path), "no-such-thing") == 1


def test_a_machine_without_nix_is_told_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BuildError, match="there is no Nix on this machine; get it with: make nix"):
        nix_host.find()
    with pytest.raises(BuildError, match="no apt-get to get it with; install Nix"):
        nix_host.obtain()
    (tmp_path / "nix").write_text("#!/bin/sh\necho nix 2.3.1\n")
    (tmp_path / "nix").chmod(0o755)
    with pytest.raises(BuildError, match="no Nix"):  # too old
        nix_host.find()
