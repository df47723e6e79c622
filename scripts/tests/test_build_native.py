"""`cuda-native` says exactly what is missing, and a source that is not the patched one is never compiled."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import fetch
import ledger
import native_build
import native_source
import native_tools
import pins
import pytest
import stamp
from build_errors import MISSING, OK, BuildError
from native_tools import Row

TABLE = pins.load()


def tool(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


# -- what the source fetches


def test_every_repository_of_the_pinned_source_is_found() -> None:
    artifact = TABLE.artifact("vllm.sdist")
    texts = native_source.cmake_texts(TABLE, fetch.cache_dir() / artifact.filename)
    sources = {source.name: source for source in native_source.git_sources(texts)}
    assert len(sources) == sum(text.count("GIT_REPOSITORY") for text in texts.values()) >= 10
    assert all("$" not in source.repository + source.revision for source in sources.values())
    assert sources["DeepGEMM"].repository == TABLE.get("deepgemm.repository")
    assert sources["DeepGEMM"].revision == TABLE.get("deepgemm.revision")
    assert sources["cutlass"].override == "VLLM_CUTLASS_SRC_DIR"
    assert "ROCm" not in sources["triton"].repository


def test_what_cmake_fetches_is_pinned() -> None:
    """The whole table, against the CMake files of the pinned archive: nothing more, nothing less, nothing else."""
    artifact = TABLE.artifact("vllm.sdist")
    texts = native_source.cmake_texts(TABLE, fetch.cache_dir() / artifact.filename)
    assert {"CMakeLists.txt", "cmake/utils.cmake"} < texts.keys()
    sources = native_source.git_sources(texts)
    assert native_source.differences(TABLE, sources) == []
    assert native_tools.pins_row(TABLE, sources).ok


SOURCE = native_source.GitSource("x.cmake", "https://h/x.git", "v1", "X_SRC_DIR")
PINNED = {"file": "x.cmake", "repository": "https://h/x.git", "revision": "v1"}


@pytest.mark.parametrize(
    ("pinned", "line"),
    [
        ({"x": PINNED}, None),
        ({"x": {**PINNED, "revision": "v0"}}, "x: x.cmake has revision v1, the pin is v0"),
        ({"x": {**PINNED, "repository": "https://h/y.git"}}, "x: x.cmake has repository https://h/x.git, the pin is"),
        ({"x": {**PINNED, "file": "y.cmake"}}, "x: x.cmake has file x.cmake, the pin is y.cmake"),
        ({}, "x: x.cmake fetches v1 of https://h/x.git, no pin says so"),
        ({"x": PINNED, "y": PINNED}, "y: no file of the source fetches it any more"),
    ],
)
def test_another_dependency_or_revision_is_named(pinned: dict, line: str | None) -> None:
    deepgemm = native_source.GitSource("cmake/external_projects/deepgemm.cmake", "https://h/DeepGEMM.git", "a1", "D")
    own = {"repository": deepgemm.repository, "revision": deepgemm.revision}
    table = pins.Pins({"cmake_sources": pinned, "deepgemm": own}, Path("pins.toml"))
    lines = native_source.differences(table, [SOURCE, deepgemm])
    row = native_tools.pins_row(table, [SOURCE, deepgemm])
    if line is None:
        assert lines == [] and row.ok
        return
    assert len(lines) == 1 and lines[0].startswith(line)
    with pytest.raises(BuildError, match=r"git sources: wanted .*write it into \[cmake_sources\]") as caught:
        native_tools.require([row], "configure")
    assert line in str(caught.value) and caught.value.code == MISSING


def test_variables_are_followed_and_the_last_choice_counts() -> None:
    text = (
        'if (DEFINED ENV{X_SRC_DIR})\nset(URL "https://h/rocm.git")\nset(URL "https://h/x.git")\nset(TAG v1)\n'
        'FetchContent_Declare(x\n  GIT_REPOSITORY ${URL}\n  GIT_TAG "${TAG}"\n)\n'
    )
    (source,) = native_source.git_sources({"x.cmake": text})
    assert (source.name, source.repository, source.revision) == ("x", "https://h/x.git", "v1")
    assert source.override == "X_SRC_DIR"


@pytest.mark.parametrize("missing", ["  GIT_TAG v1\n", "ENV{X_SRC_DIR}"])
def test_a_file_that_fetches_in_an_unknown_way_is_an_error(missing: str) -> None:
    text = "ENV{X_SRC_DIR}\n  GIT_REPOSITORY https://h/x.git\n  GIT_TAG v1\n"
    assert len(native_source.git_sources({"x.cmake": text})) == 1
    with pytest.raises(BuildError, match="x.cmake .*cannot read"):
        native_source.git_sources({"x.cmake": text.replace(missing, "")})


@pytest.mark.parametrize(
    "other",
    [
        "ExternalProject_Add(x)",
        "  URL https://h/x.tar.gz",
        "file(DOWNLOAD https://h/x x)",
        "execute_process(COMMAND git clone https://h/x)",
        "CPMAddPackage(x)",
    ],
)
def test_another_way_to_fetch_is_an_error(other: str) -> None:
    with pytest.raises(BuildError, match="x.cmake .*cannot read"):
        native_source.git_sources({"x.cmake": f"set(A b)\n{other}\n"})
    assert native_source.git_sources({"x.cmake": f"# {other}\n"}) == []


# -- the rows


@pytest.mark.parametrize(("release", "ok"), [("PINNED", True), ("12.9.41", False)])
def test_nvcc_must_be_the_pinned_release(tmp_path: Path, monkeypatch, release: str, ok: bool) -> None:
    release = TABLE.get("cuda.compiler") if release == "PINNED" else release
    tool(tmp_path / "bin", "nvcc", f"echo 'Cuda compilation tools, release x, V{release}'")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    row = native_tools.nvcc_row(TABLE)
    assert row.ok is ok and release in row.found
    if not ok:
        with pytest.raises(BuildError, match=f"nvcc: wanted .*found {release}.*install CUDA compiler") as caught:
            native_tools.require([row], "configure")
        assert caught.value.code == MISSING


def test_no_nvcc_is_said(monkeypatch) -> None:
    monkeypatch.setattr(native_tools, "find_nvcc", lambda: None)
    assert native_tools.nvcc_row(TABLE).found == "not found"
    assert not native_tools.arch_row(TABLE).ok
    with pytest.raises(BuildError, match="nvcc is not found"):
        native_build.build_environment(TABLE, Path("native"))


def test_an_nvcc_without_the_target_is_said(tmp_path: Path, monkeypatch) -> None:
    tool(tmp_path / "bin", "nvcc", "echo sm_80 sm_90")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert not native_tools.arch_row(TABLE).ok
    tool(tmp_path / "bin", "nvcc", "echo sm_80 sm_120")
    assert native_tools.arch_row(TABLE).ok


@pytest.mark.parametrize(("version", "ok"), [("12.2.0", False), ("13.1.0", True), ("14", True)])
def test_the_host_compiler_must_be_new_enough(tmp_path: Path, monkeypatch, version: str, ok: bool) -> None:
    monkeypatch.setenv("CXX", str(tool(tmp_path, "g++", f"echo {version}")))
    assert native_tools.gcc_row().ok is ok


@pytest.mark.parametrize(
    ("answer", "ok"), [("V cu", True), ("V None", False), ("V+cpu None", False), ("0.1 cu", False)]
)
def test_torch_must_be_the_pinned_cuda_build(tmp_path: Path, answer: str, ok: bool) -> None:
    answer = answer.replace("V", TABLE.get("torch.cuda.version"))
    assert native_tools.torch_row(TABLE, tool(tmp_path, "python", f"echo '{answer}'")).ok is ok
    assert not native_tools.torch_row(TABLE, tmp_path / "none").ok


def test_a_git_source_is_reachable_local_or_missing(tmp_path: Path, monkeypatch) -> None:
    repository = tmp_path / "x.git"
    subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)
    source = native_source.GitSource("x.cmake", f"file://{repository}", "v1", "X_SRC_DIR")
    monkeypatch.delenv("X_SRC_DIR", raising=False)
    assert native_tools.source_row(source).ok
    gone = native_source.GitSource("x.cmake", f"file://{tmp_path}/none.git", "v1", "X_SRC_DIR")
    row = native_tools.source_row(gone)
    assert not row.ok and "set X_SRC_DIR to a copy at v1" in row.remedy
    monkeypatch.setenv("X_SRC_DIR", str(tmp_path))
    assert native_tools.source_row(gone).ok
    monkeypatch.setenv("X_SRC_DIR", str(tmp_path / "nowhere"))
    assert not native_tools.source_row(gone).ok


def test_a_local_copy_at_another_revision_is_not_taken(tmp_path: Path) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "1"], ["tag", "v1"]):
        subprocess.run(["git", "-C", str(tmp_path), *identity, *command], check=True)
    assert native_tools.local_copy(tmp_path, "v1") == ("at the revision", True)
    more = ["commit", "-q", "--allow-empty", "-m", "2"]
    subprocess.run(["git", "-C", str(tmp_path), *identity, *more], check=True)
    state, good = native_tools.local_copy(tmp_path, "v1")
    assert state.startswith("at ") and not good
    assert native_tools.local_copy(tmp_path, "0" * 40)[1] is False


ROWS = [
    Row("nvcc", "1", "1", True, "", "configure"),
    Row("cargo", "1.9", "not found", False, "left out", "optional"),
    Row("cutlass", "v4", "no host", False, "set VLLM_CUTLASS_SRC_DIR"),
]


def test_the_table_tells_missing_from_left_out() -> None:
    lines = native_tools.table(ROWS).splitlines()
    assert [line.split()[2] for line in lines[:3]] == ["ok", "left", "MISSING"]
    assert lines[-1] == "cutlass: set VLLM_CUTLASS_SRC_DIR"


def test_check_is_status_3_only_for_what_is_needed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(native_build, "needs", lambda *a: ROWS)
    assert native_build.check(TABLE, Path("native")) == MISSING
    monkeypatch.setattr(native_build, "needs", lambda *a: ROWS[:2])
    assert native_build.check(TABLE, Path("native")) == OK
    assert "cutlass" in capsys.readouterr().out


# -- the tree and CMake


@pytest.fixture
def small(tmp_path: Path, monkeypatch) -> pins.Pins:
    """Pins, archive and patch of a source with one file."""
    before, after = "one\n", "two\n"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        info = tarfile.TarInfo("small-1/vllm/a.py")
        info.size = len(before)
        tar.addfile(info, io.BytesIO(before.encode()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fetch.cache_dir().mkdir(parents=True)
    (fetch.cache_dir() / "small.tar.gz").write_bytes(data.getvalue())
    sha256 = hashlib.sha256(data.getvalue()).hexdigest()
    sdist = {"filename": "small.tar.gz", "url": "http://127.0.0.1:9/none", "sha256": sha256, "root": "small-1"}
    table = pins.Pins({"vllm": {"version": "1", "sdist": sdist}}, tmp_path / "pins.toml")
    patch = tmp_path / "patch"
    patch.mkdir()
    monkeypatch.setattr(native_source, "PATCH_DIR", patch)
    text = "diff --git a/vllm/a.py b/vllm/a.py\n--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-one\n+two\n"
    (patch / table.patch_name()).write_text(text)
    hashes = [hashlib.sha256(side.encode()).hexdigest() for side in (before, after)]
    (patch / "FILES.txt").write_text(ledger.Entry("vllm/a.py", *hashes, 1, 1, ("01-x.patch",)).line() + "\n")
    return table


def test_the_tree_is_patched_once(small: pins.Pins, tmp_path: Path) -> None:
    tree = native_source.patched_tree(small, tmp_path / "native")
    assert (tree / "vllm/a.py").read_text() == "two\n"
    (tree / "built").touch()
    assert (native_source.patched_tree(small, tmp_path / "native") / "built").exists()


def test_an_unfinished_tree_is_made_again(small: pins.Pins, tmp_path: Path) -> None:
    tree = native_source.patched_tree(small, tmp_path / "native")
    (tree / stamp.STAMP_NAME).unlink()
    (tree / "vllm/a.py").write_text("half")
    assert (native_source.patched_tree(small, tmp_path / "native") / "vllm/a.py").read_text() == "two\n"


def test_a_patch_that_does_not_apply_stops_before_cmake(small: pins.Pins, tmp_path: Path) -> None:
    files = native_source.PATCH_DIR / "FILES.txt"
    files.write_text(files.read_text().replace(files.read_text().split()[1], "0" * 64))
    with pytest.raises(BuildError, match=r"patch/series/01-x\.patch"):
        native_source.patched_tree(small, tmp_path / "native")
    assert stamp.read(tmp_path / "native" / "work" / "cuda-native" / "source") == {}


def test_a_cmake_error_is_placed_and_its_causes_named(tmp_path: Path) -> None:
    native, tree = tmp_path / "native", tmp_path / "native" / "work" / "source"
    tree.mkdir(parents=True)
    lines = "CMake Error at CMakeLists.txt:7 (message):\\n  no cutlass\\n"
    tool(native / "venv-cuda" / "bin", "cmake", f"echo '-- Found Torch: /x'; printf '{lines}' >&2; exit 1")
    with pytest.raises(
        BuildError, match=r"CMakeLists\.txt:7 \(message\): no cutlass; missing here: cutlass;"
    ) as caught:
        native_build.configure(tree, native, {"CUDA_HOME": "/cuda"}, ROWS)
    assert caught.value.code == MISSING
    with pytest.raises(BuildError, match="see the log") as caught:
        native_build.configure(tree, native, {"CUDA_HOME": "/cuda"}, ROWS[:2])
    assert caught.value.code == 1
    tool(native / "venv-cuda" / "bin", "cmake", "exit 0")
    native_build.configure(tree, native, {"CUDA_HOME": "/cuda"}, ROWS)
