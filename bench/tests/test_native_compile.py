"""What is said of a compile of vLLM's extensions comes from its logs; a source that changed is not cut wrongly."""

from __future__ import annotations

import os
from pathlib import Path

import native_source
import pins
import pytest
from build_errors import BuildError

from bench import native_compile

LOG = """# ninja log v6
0\t1009\t17\tCMakeFiles/spinloop.dir/csrc/spinloop.cpp.o\tabc
1009\t1561\t17\tspinloop.abi3.so\tabc
5\t59696\t17\tCMakeFiles/_moe_C_stable_libtorch.dir/csrc/moe/moe_align_sum_kernels.cu.o\tabc
"""


def test_seconds_of_a_targets_steps() -> None:
    assert native_compile.step_seconds(LOG, "spinloop") == {"csrc/spinloop.cpp.o": 1.0, "spinloop.abi3.so": 0.6}
    moe = native_compile.step_seconds(LOG, "_moe_C_stable_libtorch")
    assert moe == {"csrc/moe/moe_align_sum_kernels.cu.o": 59.7}
    assert native_compile.step_seconds("# ninja log v6\n", "spinloop") == {}


def test_seconds_of_configuring() -> None:
    log = "-- Found\n-- Configuring done (12.7s)\n-- Generating done (0.1s)\n"
    assert native_compile.configure_seconds(log) == 12.7
    with pytest.raises(BuildError, match="delete the build folder and run it again"):
        native_compile.configure_seconds("-- Configuring incomplete, errors occurred!\n")


def test_every_difference_is_in_the_result() -> None:
    found = native_compile.differences()
    assert len(found) == native_compile.__doc__.count("\n* ") >= 4
    assert any("CUTLASS" in entry for entry in found) and not any("\n" in entry for entry in found)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A patched source with one CMake file, where the build would have made it."""
    native = tmp_path / "native"
    tree = native / "work" / "cuda-native" / "source"
    tree.mkdir(parents=True)
    monkeypatch.setattr(native_compile, "NATIVE", native)
    monkeypatch.setattr(native_source, "patched_tree", lambda *a: tree)
    return tree


def test_the_source_is_cut_before_the_external_projects(source: Path, tmp_path: Path) -> None:
    (source / "CMakeLists.txt").write_text(f"ours\n{native_compile._CUT}\ninclude(theirs)\n")
    for _ in range(2):  # a second run finds it cut
        tree = native_compile.prepare(pins.load(), tmp_path / "work")
        assert (tree / "CMakeLists.txt").read_text() == "ours\n"
    assert "theirs" in (source / "CMakeLists.txt").read_text()


def test_a_source_without_that_place_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "CMakeLists.txt").write_text("ours\ninclude(theirs)\n")
    with pytest.raises(BuildError, match="look where its external projects begin"):
        native_compile.prepare(pins.load(), tmp_path / "work")


def test_object_files_are_counted_by_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "cuobjdump"
    tool.write_text('#!/bin/sh\ncat "$2"\n')
    tool.chmod(0o755)
    monkeypatch.setattr(native_compile.kernel_toolkit, "reader", lambda *a: tool)
    for name, text in (("a", "ELF file 1: a.1.sm_90a.cubin\n"), ("b", "b.1.sm_90a.cubin\nb.2.sm_80.cubin"), ("c", "")):
        (tmp_path / name).write_text(text)
    files = [tmp_path / name for name in "abc"]
    assert native_compile.architectures(files) == {"sm_80": 1, "sm_90a": 2}
    assert native_compile.architectures([]) == {}


def test_no_environment_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(native_compile, "NATIVE", tmp_path)
    assert native_compile.main(["--out", str(tmp_path / "x.json")]) == 3
    assert "run scripts/build-native.sh cuda" in capsys.readouterr().err and not os.listdir(tmp_path)
