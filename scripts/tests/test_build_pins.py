"""pins.toml and its reader, and the check that no version is written anywhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pin_leaks
import pins
import pytest
from build_errors import BuildError

SCRIPT = pins.ROOT / "scripts" / "lib" / "pins.py"


def shell_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


def test_a_shell_reads_a_value() -> None:
    done = shell_get("get", "vllm.version")
    assert (done.returncode, done.stdout) == (0, pins.load().get("vllm.version") + "\n")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("get", "vllm.versoin"), 2, "no key 'vllm.versoin': vllm has "),
        (("get", "vllm.version.major"), 2, "no key"),
        (("get", "vllm"), 1, "vllm is a table"),
        (("get",), 2, "usage"),
    ],
)
def test_a_wrong_key_is_one_clear_line(arguments: tuple[str, ...], status: int, message: str) -> None:
    done = shell_get(*arguments)
    assert done.returncode == status and done.stdout == ""
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_every_artifact_of_the_table_is_well_formed() -> None:
    table = pins.load()
    keys = ["vllm.sdist", "vllm.cpu", "vllm.cuda", "torch.cpu", "torch.cuda"]
    keys += [f"{group}.{name}" for group in ("tools", "cuda.toolkit", "cuda.readers") for name in table.get(group)]
    for key in keys:
        artifact = table.artifact(key)
        assert artifact.url.startswith("https://")
        assert artifact.url.rsplit("/", 1)[1].replace("%2B", "+") == artifact.filename


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "abc"}, "not 64 hex digits"),
        ({"filename": "../x.whl"}, "not a plain name"),
        ({"url": None}, "no key 'a.url'"),
    ],
)
def test_a_malformed_artifact_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    fields = {"filename": "x.whl", "url": "https://x/x.whl", "sha256": "0" * 64} | change
    text = "[a]\n" + "".join(f'{name} = "{value}"\n' for name, value in fields.items() if value is not None)
    (tmp_path / "pins.toml").write_text(text)
    with pytest.raises(BuildError, match=message):
        pins.load(tmp_path / "pins.toml").artifact("a")


def test_a_table_that_is_not_toml_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "pins.toml").write_text("[a\n")
    with pytest.raises(BuildError, match="not valid TOML"):
        pins.load(tmp_path / "pins.toml")
    with pytest.raises(BuildError, match="does not exist"):
        pins.load(tmp_path / "none.toml")


def test_this_tree_names_no_pinned_version_elsewhere() -> None:
    assert [str(leak) for leak in pin_leaks.find(pins.ROOT, pins.load())] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize(
    "key", ["vllm.version", "torch.version", "torch.cpu.version", "cuda.compiler", "deepgemm.revision", "torch.git"]
)
@pytest.mark.parametrize("text", ["needs X today", "v=X", "pkg-X.tar.gz", '"vX"', "X"])
def test_a_planted_version_is_found(tree: Path, key: str, text: str) -> None:
    table = pins.load()
    (tree / "notes.md").write_text("first line\n" + text.replace("X", table.get(key)) + "\n")
    (leak,) = pin_leaks.find(tree, table)
    assert (leak.path, leak.line) == ("notes.md", 2)


@pytest.mark.parametrize("text", ["1X", "X.1", "aX", "Xrc"])
def test_a_part_of_another_number_is_not_a_leak(tree: Path, text: str) -> None:
    table = pins.load()
    (tree / "notes.md").write_text(text.replace("X", table.get("torch.version")) + "\n")
    assert pin_leaks.find(tree, table) == []


def test_generated_files_may_name_versions(tree: Path) -> None:
    table = pins.load()
    for name in ("requirements/cpu.lock", "patch/SOURCE.txt", "pins.toml"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(table.get("vllm.version"))
    assert pin_leaks.find(tree, table) == []
    (tree / "patch" / "tool.py").write_text(table.get("vllm.version"))
    assert len(pin_leaks.find(tree, table)) == 1


def test_a_link_is_not_looked_through(tree: Path) -> None:
    table = pins.load()
    (tree / "requirements").mkdir()
    (tree / "requirements" / "cpu.lock").write_text(table.get("vllm.version"))
    (tree / "link.lock").symlink_to("requirements/cpu.lock")
    assert pin_leaks.find(tree, table) == []
    (tree / "notes.md").write_text(table.get("vllm.version"))
    (tree / "link.md").symlink_to("notes.md")
    assert [leak.path for leak in pin_leaks.find(tree, table)] == ["notes.md"]


def test_ignored_files_are_not_looked_at(tree: Path) -> None:
    table = pins.load()
    (tree / ".gitignore").write_text("out/\n")
    (tree / "out").mkdir()
    (tree / "out" / "log").write_text(table.get("vllm.version"))
    assert pin_leaks.find(tree, table) == []
