"""Cubins are made once for each set of inputs, the same bytes everywhere, and any drift is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import kernel_build
import kernel_check
import kernel_command
import kernel_compile
import kernel_manifest
import kernel_sources
import kernel_toolkit
import kernel_trees
import pins
import pytest
from build_errors import FAILED, MISSING, OK, BuildError
from kernel_sources import Job
from kernel_toolkit import Compiler

ARCHITECTURES = ["sm_80", "sm_120a"]


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return kernel_toolkit.compiler(pins.load(), kernel_command.NATIVE, download=False)
    except BuildError as error:
        if error.code != MISSING:
            raise
        pytest.skip(f"nothing can be compiled here: {error}")


@pytest.fixture(scope="module")
def built(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree and its cubins. Tests that change something work on a copy."""
    root = kernel_trees.make(tmp_path_factory.mktemp("built"))
    assert kernel_build.build(root, root / "kernels", compiler, ARCHITECTURES) == 4
    return root


@pytest.fixture
def tree(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "a" / "copy"))


def files(root: Path) -> dict[str, bytes]:
    paths = [*(root / "kernels" / "cubins").rglob("*"), root / "kernels" / "MANIFEST.json"]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}


def stale(root: Path) -> list[str]:
    return kernel_manifest.stale(root, root / "kernels", pins.load().get("cuda.compiler"), ARCHITECTURES)


# -- building


def test_the_manifest_describes_every_cubin(built: Path) -> None:
    manifest = kernel_manifest.read(built / "kernels")
    assert manifest["compiler"]["version"] == pins.load().get("cuda.compiler")
    assert list(manifest["cubins"]) == ["sm_120a/add", "sm_120a/scale", "sm_80/add", "sm_80/scale"]
    entry = manifest["cubins"]["sm_80/scale"]
    assert entry["source"] == "kernels/src/scale.cu"
    assert list(entry["inputs"]) == ["kernels/include/factor.cuh", "kernels/src/scale.cu"]
    assert entry["bytes"] == (built / "kernels" / "cubins" / "sm_80" / "scale.cubin").stat().st_size
    function = entry["functions"]["scale"]
    assert function.pop("registers") > 4
    assert function == {"shared_bytes": 256, "stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0}
    assert stale(built) == []


def test_every_header_that_the_compiler_reads_counts(compiler: Compiler) -> None:
    """Of this tree's own sources: what nvcc names as read, apart from the toolkit's and the system's."""
    for source in sorted((pins.ROOT / "kernels" / "src").glob("*.cu")):
        source = source.relative_to(pins.ROOT)
        command = [str(compiler.nvcc), "-std=c++17", "-MM", str(source)]
        done = subprocess.run(command, cwd=pins.ROOT, capture_output=True, text=True, check=True)
        names = done.stdout.partition(":")[2].replace("\\\n", " ").split()
        read = {os.path.normpath(name) for name in names if not os.path.isabs(name)}
        assert str(source) in read
        assert set(kernel_sources.inputs(pins.ROOT, source)) == read


def test_nothing_is_compiled_twice(tree: Path, compiler: Compiler) -> None:
    before = {path: path.stat().st_mtime_ns for path in tree.rglob("*") if path.is_file()}
    assert kernel_build.build(tree, tree / "kernels", compiler, ARCHITECTURES) == 0
    assert {path: path.stat().st_mtime_ns for path in tree.rglob("*") if path.is_file()} == before


def test_everything_again_in_another_place_is_the_same_bytes(
    built: Path, tree: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.setenv(name, "-lineinfo -DNDEBUG")
    assert kernel_build.build(tree, tree / "kernels", compiler, ARCHITECTURES, force=True) == 4
    assert files(tree) == files(built)
    text = b"".join(files(tree).values())
    assert str(tmp_path).encode() not in text and b".cu\0" not in text


def test_a_changed_header_recompiles_what_reaches_it(tree: Path, compiler: Compiler) -> None:
    (tree / "kernels" / "include" / "factor.cuh").write_text(kernel_trees.HEADER.replace("3", "5"))
    assert stale(tree) == [
        f"{arch}/scale: made from other inputs; changed: kernels/include/factor.cuh" for arch in ARCHITECTURES
    ]
    before = files(tree)
    assert kernel_build.build(tree, tree / "kernels", compiler, ARCHITECTURES) == 2
    changed = {name for name, data in files(tree).items() if data != before[name]}
    assert changed == {"kernels/MANIFEST.json", *(f"kernels/cubins/{arch}/scale.cubin" for arch in ARCHITECTURES)}
    assert stale(tree) == []


def test_a_damaged_cubin_is_made_again(built: Path, tree: Path, compiler: Compiler) -> None:
    path = tree / "kernels" / "cubins" / "sm_80" / "add.cubin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert stale(tree) == ["sm_80/add: the cubin is missing or not the one that MANIFEST.json names"]
    assert kernel_build.build(tree, tree / "kernels", compiler, ARCHITECTURES) == 1
    assert files(tree) == files(built)


def test_a_source_that_is_gone_takes_its_cubins_along(tree: Path, compiler: Compiler) -> None:
    (tree / "kernels" / "src" / "add.cu").unlink()
    assert len(stale(tree)) == 4  # two entries and two files too many
    assert kernel_build.build(tree, tree / "kernels", compiler, ARCHITECTURES) == 0
    assert [name for name in files(tree) if "add" in name] == []
    assert stale(tree) == []


def test_a_source_for_one_architecture_is_compiled_for_that_alone(tmp_path: Path) -> None:
    root = kernel_trees.make(tmp_path, decode=kernel_trees.ADD, decode_bs=kernel_trees.ADD)
    names = [job.name for job in kernel_sources.jobs(root, ARCHITECTURES)]
    assert names == ["sm_80/decode", "sm_120a/decode", "sm_120a/decode_bs"]


# -- failing


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extern "C" __global__ void f(int* p) { *p = missing; }', 'identifier "missing" is undefined'),
        ('extern "C" __global__ void f(int* p) { int unused = 1; *p = 1; }', '"unused" was declared but never'),
        ("__device__ int f() { return 1; }", 'has no kernel \\(extern "C" __global__\\)'),
    ],
    ids=["error", "warning", "no kernel"],
)
def test_a_bad_source_ends_the_build_in_the_compilers_words(
    tmp_path: Path, compiler: Compiler, text: str, message: str
) -> None:
    root = kernel_trees.make(tmp_path, bad=text)
    with pytest.raises(BuildError, match=message) as caught:
        kernel_build.build(root, root / "kernels", compiler, ["sm_80"])
    assert "kernels/src/bad.cu" in str(caught.value) and "sm_80" in str(caught.value)
    assert not (root / "kernels" / "MANIFEST.json").exists()


@pytest.mark.parametrize("name", ["../include/none.cuh", "../../../outside.cuh"])
def test_an_include_that_is_no_file_of_the_tree_is_refused(tmp_path: Path, name: str) -> None:
    root = kernel_trees.make(tmp_path / "tree", bad=f'#include "{name}"\n')
    (tmp_path / "outside.cuh").touch()
    with pytest.raises(BuildError, match=f'kernels/src/bad.cu includes "{name}"'):
        kernel_sources.inputs(root, Path("kernels/src/bad.cu"))


def test_a_tree_without_sources_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="has no sources"):
        kernel_sources.jobs(tmp_path, ARCHITECTURES)


def test_a_manifest_that_is_not_json_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text("{")
    with pytest.raises(BuildError, match="is not JSON"):
        kernel_manifest.read(tmp_path)


# -- what ptxas reports


REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    32 bytes stack frame, 36 bytes spill stores, 40 bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 40 bytes cumulative stack size, 1024 bytes smem, 424 bytes cmem[0]
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, 424 bytes cmem[0]
"""


def test_the_report_of_ptxas_is_read() -> None:
    none = {"shared_bytes": 0, "stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0}
    found = kernel_compile.report(REPORT)
    assert list(found) == ["first", "second"]
    assert found["first"] == {"registers": 16, **none}
    assert found["second"] == {
        "registers": 128,
        "shared_bytes": 1024,
        "stack_bytes": 40,
        "spill_store_bytes": 40,
        "spill_load_bytes": 40,
    }


def test_spills_are_found(tmp_path: Path, compiler: Compiler) -> None:
    root = kernel_trees.make(tmp_path, spilling=kernel_trees.SPILLING)
    (function,) = kernel_compile.run(
        compiler.nvcc, root, Job(Path("kernels/src/spilling.cu"), "sm_80")
    ).functions.values()
    assert function["registers"] == 32
    assert min(function[name] for name in ("stack_bytes", "spill_store_bytes", "spill_load_bytes")) > 0


# -- --check


def doctor(root: Path, change: Callable[[dict], object]) -> None:
    """Change the manifest of a tree."""
    path = root / "kernels" / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def check(root: Path, notes: Path, compiler: Compiler, *, force: bool = False) -> tuple[list[str], int]:
    return kernel_check.check(root, root / "kernels", compiler, ARCHITECTURES, notes=notes, force=force)


def test_what_was_reproduced_once_is_not_compiled_again(tree: Path, compiler: Compiler, tmp_path: Path) -> None:
    before, notes = files(tree), tmp_path / "notes"
    assert check(tree, notes, compiler) == ([], 4)
    assert check(tree, notes, compiler) == ([], 0)
    next(notes.iterdir()).unlink()
    assert check(tree, notes, compiler) == ([], 1)
    assert files(tree) == before
    doctor(tree, lambda m: m["cubins"]["sm_80/add"]["functions"]["add"].update(registers=1))
    problems, compiled = check(tree, notes, compiler)
    assert compiled == 1 and len(problems) == 1 and "sm_80/add.functions.add.registers: 1 committed" in problems[0]
    (tree / "kernels" / "cubins" / "sm_80" / "scale.cubin").unlink()
    path = tree / "kernels" / "cubins" / "sm_120a" / "scale.cubin"
    path.write_bytes(path.read_bytes() + b"x")
    problems, compiled = check(tree, notes, compiler)
    assert compiled == 3 and len(problems) == 3


def test_force_and_another_host_compiler_compile_again(
    tree: Path, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = kernel_manifest.read(tree / "kernels")["cubins"]["sm_80/add"]
    note = kernel_check.note_of(entry, compiler)
    monkeypatch.setattr(kernel_toolkit, "host_version", lambda: "another")
    assert kernel_check.note_of(entry, compiler) != note
    for entry in kernel_manifest.read(tree / "kernels")["cubins"].values():
        (tmp_path / kernel_check.note_of(entry, compiler)).touch()
    assert check(tree, tmp_path, compiler) == ([], 0)
    assert check(tree, tmp_path, compiler, force=True) == ([], 4)


def test_check_names_each_difference(tree: Path, compiler: Compiler, tmp_path: Path) -> None:
    """One of them shows only by compiling: a cubin of other code, with its hash in the manifest."""
    other = kernel_trees.make(tree / "other", add=kernel_trees.ADD.replace("1", "2"))
    kernel_build.build(other, other / "kernels", compiler, ["sm_120a"])
    shutil.copytree(other / "kernels" / "cubins", tree / "kernels" / "cubins", dirs_exist_ok=True)
    sha256 = kernel_manifest.read(other / "kernels")["cubins"]["sm_120a/add"]["sha256"]
    doctor(tree, lambda m: m["cubins"]["sm_120a/add"].update(sha256=sha256))
    assert stale(tree) == []
    doctor(tree, lambda m: m["cubins"]["sm_80/add"]["functions"]["add"].update(registers=1))
    doctor(tree, lambda m: m["cubins"].pop("sm_80/scale"))
    (tree / "kernels" / "cubins" / "sm_80" / "extra.cubin").touch()
    expected = [
        "sm_80/scale: not in MANIFEST.json",
        "sm_80/extra: a cubin that is not asked for by the tree",
        'MANIFEST.json: cubins.sm_120a/add.sha256: "[0-9a-f]{64}" committed, "[0-9a-f]{64}" compiled',
        r"MANIFEST.json: cubins.sm_80/add.functions.add.registers: 1 committed, \d+ compiled",
        "MANIFEST.json: cubins.sm_80/scale: nothing committed, an entry compiled",
    ]
    found, _ = check(tree, tmp_path / "notes", compiler)
    assert len(found) == len(expected)
    for line, pattern in zip(found, expected, strict=True):
        assert re.fullmatch(pattern, line)


def test_another_compiler_or_format_is_named(tree: Path) -> None:
    doctor(tree, lambda m: m["compiler"].update(version="1.0"))
    first, *others = stale(tree)
    assert first.startswith("MANIFEST.json: made by nvcc 1.0, pinned is ")
    assert len(others) == 4 and all("changed: the flags, or MANIFEST.json" in line for line in others)
    doctor(tree, lambda m: m.update(format=0))
    assert stale(tree) == [f"MANIFEST.json: format 0, wanted {kernel_manifest.FORMAT}"]
    (tree / "kernels" / "MANIFEST.json").unlink()
    assert stale(tree) == ["MANIFEST.json: missing; run `make kernels`"]


@pytest.mark.usefixtures("compiler")
def test_the_command_says_what_it_did_and_fails_on_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_check, "notes_dir", lambda: tmp_path / "notes")
    root = kernel_trees.make(tmp_path, add=kernel_trees.ADD)
    text = (pins.ROOT / "pins.toml").read_text()
    (root / "pins.toml").write_text(re.sub(r"kernel_architectures = .*", 'kernel_architectures = ["sm_80"]', text))
    assert kernel_command.main([], root) == OK
    assert re.search(r"^sm_80/add +[\d,]+ bytes, 1 kernels, <= \d+ registers$", capsys.readouterr().out, re.MULTILINE)
    assert kernel_command.main([], root) == OK
    assert "kernels: 0 compiled by nvcc" in capsys.readouterr().out
    assert kernel_command.main(["--check"], root) == OK
    assert "every cubin is what its source gives; 1 compiled again" in capsys.readouterr().out
    (root / "kernels" / "src" / "add.cu").write_text(kernel_trees.ADD.replace("1", "2"))
    assert kernel_command.main(["--check"], root) == FAILED
    assert "sm_80/add: made from other inputs; changed: kernels/src/add.cu" in capsys.readouterr().err
    (root / "kernels" / "src" / "add.cu").unlink()
    assert kernel_command.main([], root) == FAILED
    assert "has no sources" in capsys.readouterr().err
