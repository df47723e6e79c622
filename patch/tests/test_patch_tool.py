"""The generator: what it writes, and that each way for the generated files to be wrong is caught."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fetch
import ledger
import pins
import pytest
import repack
import tool
from build_errors import BuildError
from series_format import parse, read_series

HEADER = """Target: the thing
Why: it is wrong
 in two ways
Upstream: none
Remove-when: it is right
Files: {files}

"""
SOURCE = {"vllm/a.py": "one\ntwo\nthree\n", "vllm/sub/b.py": "x = 1\n", "vllm/gone.py": "old\n"}
EDIT_A = (
    "diff --git a/vllm/a.py b/vllm/a.py\n--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
)
EDIT_B = (
    "diff --git a/vllm/sub/b.py b/vllm/sub/b.py\n"
    "--- a/vllm/sub/b.py\n+++ b/vllm/sub/b.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
)
# Applies only after EDIT_A; adds a file and removes one.
EDIT_MORE = (
    "diff --git a/vllm/a.py b/vllm/a.py\n--- a/vllm/a.py\n+++ b/vllm/a.py\n"
    "@@ -1,3 +1,4 @@\n one\n 2\n three\n+-- four\n"
    "diff --git a/vllm/new.py b/vllm/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/vllm/new.py\n@@ -0,0 +1 @@\n"
    "+fresh\n\\ No newline at end of file\n"
    "diff --git a/vllm/gone.py b/vllm/gone.py\ndeleted file mode 100644\n--- a/vllm/gone.py\n+++ /dev/null\n"
    "@@ -1 +0,0 @@\n-old\n"
)
MORE_FILES = "vllm/a.py vllm/new.py vllm/gone.py"


class Tree:
    """A small source and a patch folder in a git repository of their own."""

    def __init__(self, folder: Path) -> None:
        self.source, self.patch = folder / "source", folder / "patch"
        for name, text in SOURCE.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_text(text)
        (self.patch / "series").mkdir(parents=True)
        self.write("01-first.patch", "vllm/a.py", EDIT_A)
        self.write("02-second.patch", MORE_FILES, EDIT_MORE)
        self.git("init", "-q")

    def write(self, name: str, files: str, diff: str) -> Path:
        path = self.patch / "series" / name
        path.write_text(HEADER.format(files=files) + diff)
        return path

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(self.patch), *identity, *arguments], check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-q", "-m", "state")

    def run(self, check: bool = False) -> list[str]:
        return tool.run(self.patch, self.source, pins.load(), check)

    @property
    def combined(self) -> Path:
        return self.patch / pins.load().patch_name()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    assert tree.run() == []
    return tree


def test_generated_files_pass_the_check(tree: Tree) -> None:
    assert tree.run(check=True) == []


def test_the_ledger_gives_both_sides_and_the_patches(tree: Tree) -> None:
    entries = {entry.path: entry for entry in ledger.read_files(tree.patch / "FILES.txt")}
    assert sorted(entries) == ["vllm/a.py", "vllm/gone.py", "vllm/new.py"]
    a = entries["vllm/a.py"]
    assert (a.added, a.removed, a.series) == (2, 1, ("01-first.patch", "02-second.patch"))
    assert a.before == fetch.sha256_of(tree.source / "vllm/a.py") and a.before != a.after
    assert entries["vllm/new.py"].before == ledger.ABSENT and entries["vllm/gone.py"].after == ledger.ABSENT


def test_the_combined_patch_does_what_the_series_does(tree: Tree) -> None:
    repack.apply_patch(tree.source, tree.combined, tree.patch / "FILES.txt")
    assert (tree.source / "vllm/a.py").read_text() == "one\n2\nthree\n-- four\n"
    assert (tree.source / "vllm/new.py").read_bytes() == b"fresh"
    assert not (tree.source / "vllm/gone.py").exists()
    assert (tree.source / "vllm/sub/b.py").read_text() == SOURCE["vllm/sub/b.py"]


def test_generation_is_repeatable(tree: Tree) -> None:
    before = tree.combined.read_bytes(), (tree.patch / "FILES.txt").read_bytes()
    assert tree.run() == []
    assert (tree.combined.read_bytes(), (tree.patch / "FILES.txt").read_bytes()) == before


@pytest.mark.parametrize("name", ["FILES.txt", "SOURCE.txt", "patch"])
@pytest.mark.parametrize("damage", ["edit", "remove"])
def test_a_generated_file_that_was_touched_is_caught(tree: Tree, name: str, damage: str) -> None:
    path = tree.combined if name == "patch" else tree.patch / name
    if damage == "edit":
        path.write_text(path.read_text() + "\n")
    else:
        path.unlink()
    assert len(tree.run(check=True)) == 1
    assert f"patch/{path.name}" in tree.run(check=True)[0]


def test_an_edited_series_is_caught(tree: Tree) -> None:
    tree.write("02-second.patch", MORE_FILES, EDIT_MORE.replace("fresh", "stale"))
    complaints = tree.run(check=True)
    assert [line.split()[0] for line in complaints] == [
        f"patch/{tree.combined.name}",
        "patch/FILES.txt",
        "patch/SOURCE.txt",
    ]


def test_an_edited_header_is_caught(tree: Tree) -> None:
    path = tree.patch / "series" / "01-first.patch"
    path.write_text(path.read_text().replace("Upstream: none", "Upstream: some"))
    assert ["SOURCE.txt" in line for line in tree.run(check=True)] == [True]


def test_another_source_is_caught(tree: Tree) -> None:
    (tree.patch / "series" / "DROPPED.txt").write_text("vllm/new.py no\nvllm/gone.py no\n")
    tree.write("02-second.patch", "vllm/sub/b.py", EDIT_B)
    assert tree.run() == [] and tree.run(check=True) == []
    (tree.source / "vllm/a.py").write_text("one\ntwo\nthree\n\n\n\n\nend\n")
    assert any("FILES.txt" in line for line in tree.run(check=True))


def test_a_patch_that_does_not_apply_is_named(tree: Tree) -> None:
    (tree.source / "vllm/a.py").write_text("one\nzwei\nthree\n")
    with pytest.raises(BuildError, match=r"patch/series/01-first\.patch does not apply.*vllm/a\.py"):
        tree.run(check=True)


def test_a_patch_with_wrong_context_gets_no_fuzz(tree: Tree) -> None:
    tree.write("01-first.patch", "vllm/a.py", EDIT_A.replace(" three", " drei"))
    with pytest.raises(BuildError, match="01-first.patch does not apply"):
        tree.run()


def test_a_file_that_vanishes_is_caught_until_the_series_says_why(tree: Tree) -> None:
    (tree.patch / "series" / "02-second.patch").unlink()
    complaints = tree.run()  # refuses to write
    assert ["vllm/gone.py" in complaints[0], "vllm/new.py" in complaints[1]] == [True, True]
    assert "vllm/gone.py" in (tree.patch / "FILES.txt").read_text()
    dropped = tree.patch / "series" / "DROPPED.txt"
    dropped.write_text("# why\nvllm/gone.py fixed upstream\nvllm/new.py not needed\n")
    assert tree.run() == [] and tree.run(check=True) == []


def test_a_vanished_file_is_remembered_by_history(tree: Tree) -> None:
    """Deleting FILES.txt first does not hide it."""
    tree.commit()
    (tree.patch / "series" / "02-second.patch").unlink()
    (tree.patch / "FILES.txt").unlink()
    assert len(tree.run()) == 2
    tree.commit()
    assert sum("no longer names" in line for line in tree.run(check=True)) == 2


def test_a_dropped_file_needs_a_reason(tree: Tree) -> None:
    (tree.patch / "series" / "DROPPED.txt").write_text("vllm/gone.py\n")
    with pytest.raises(BuildError, match="has no reason"):
        tree.run(check=True)


def test_a_combined_patch_of_another_version_is_caught_and_replaced(tree: Tree) -> None:
    old = tree.patch / "vllm-moet-v0.0.1.patch"
    old.write_text("")
    assert "belongs to no pinned version" in tree.run(check=True)[0]
    assert tree.run() == [] and not old.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Why: it is wrong\n in two ways\n", ""), "lacks Why"),
        (("Upstream: none", "Upstream:"), "lacks Upstream"),
        (("Target: the thing", "Target: a\nTarget: b"), "given twice"),
        (("Target: the thing", "Author: me"), "not a header line"),
        (("Files: vllm/a.py", "Files: vllm/sub/b.py"), "the diff changes vllm/a.py"),
        (("diff --git", "diff"), "has no line"),
    ],
)
def test_a_malformed_series_file_is_refused(tree: Tree, change: tuple[str, str], message: str) -> None:
    path = tree.patch / "series" / "01-first.patch"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(BuildError, match=message):
        parse(path)


def test_series_names_and_numbers(tree: Tree) -> None:
    (tree.patch / "series" / "01-again.patch").write_text((tree.patch / "series" / "01-first.patch").read_text())
    with pytest.raises(BuildError, match="more than one patch has the number 01"):
        read_series(tree.patch / "series")
    (tree.patch / "series" / "01-again.patch").rename(tree.patch / "series" / "Again.patch")
    with pytest.raises(BuildError, match="NN-name.patch"):
        read_series(tree.patch / "series")


@pytest.mark.parametrize(
    "line", ["vllm/a.py abc - +1 -0 x", "/etc/x - - +1 -0 x", "vllm/../x - - +1 -0 x", "vllm/a.py"]
)
def test_a_malformed_ledger_line_is_named(line: str) -> None:
    with pytest.raises(BuildError, match=r"FILES\.txt:2: not a line"):
        ledger.parse_files(f"# head\n{line}\n", "FILES.txt")


def test_this_tree_passes_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    """The real series against the real pinned source, which `make setup` has put into the cache."""
    assert fetch.is_verified(pins.load().artifact("vllm.sdist"), fetch.cache_dir()), "run `make setup` first"
    assert tool.main(["--check"]) == 0, capsys.readouterr().err


def test_the_real_patch_fits_the_cpu_wheel_and_the_source_alike(tmp_path: Path) -> None:
    """The files it changes are the same in both, and the installed ones are the patched ones."""
    root = tool.pinned_source(pins.load(), tmp_path)
    site = next((pins.ROOT / ".native" / "venv-cpu" / "lib").glob("python*")) / "site-packages"
    entries = ledger.read_files(pins.ROOT / "patch" / "FILES.txt")
    assert entries
    for entry in entries:
        if entry.before != ledger.ABSENT:
            assert fetch.sha256_of(root / entry.path) == entry.before
        if entry.after != ledger.ABSENT:
            assert fetch.sha256_of(site / entry.path) == entry.after
