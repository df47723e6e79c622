"""The flake, with Nix: it evaluates, its source, extension and checks build, and each of its gates closes.

nixpkgs and DeepGEMM are the stand-ins of nix/tests; the pinned archives are those of the cache. Where there is no Nix
these tests are skipped, which the summary says; `make nix` gets one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fetch
import ledger
import pins as pin_table
import pytest
from build_errors import BuildError

from nix.tests import nix_host

ROOT = pin_table.ROOT
SYSTEM = "x86_64-linux"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@invalid"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def nix() -> Iterator[nix_host.Nix]:
    try:
        nix_host.find()
    except BuildError as error:
        pytest.skip(f"THE FLAKE IS NOT TESTED: {error}")
    with nix_host.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own, with everything of this one that is tracked or would be, committed."""
    folder = tmp_path_factory.mktemp("flake") / "tree"
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "tree")
    return folder


@pytest.fixture
def edit(tree: Path) -> Iterator[Callable[[str, Callable[[str], str]], None]]:
    """A function that changes a file of the tree, afterwards the tree is as it was."""

    def change(name: str, how: Callable[[str], str]) -> None:
        path = tree / name
        changed = how(path.read_text())
        assert changed != path.read_text()
        path.write_text(changed)

    head = git(tree, "rev-parse", "HEAD").strip()
    yield change
    git(tree, "reset", "-q", "--hard", head)


@pytest.fixture
def run(nix: nix_host.Nix, tree: Path) -> Callable[..., str]:
    return functools.partial(nix.run, tree=f"git+file://{tree}")


@pytest.fixture
def refuses(run: Callable[..., str]) -> Callable[[str], str]:
    """A function that builds an output which must fail, and returns what was said."""

    def build(attribute: str) -> str:
        with pytest.raises(BuildError) as caught:
            run("build", f".#{attribute}", "--no-link")
        return str(caught.value)

    return build


def built(run: Callable[..., str], attribute: str, *options: str) -> Path:
    (made,) = json.loads(run("build", f".#{attribute}", "--no-link", "--json", *options))
    return Path(made["outputs"]["out"])


def check(name: str) -> str:
    return f"checks.{SYSTEM}.{name}"


def test_the_flake_check_passes(run):
    run("flake", "check")
    names = {
        kind: json.loads(run("eval", f".#{kind}.{SYSTEM}", "--apply", "builtins.attrNames", "--json"))
        for kind in ("packages", "apps", "devShells", "checks")
    }
    assert names["packages"] == ["default", "kernels", "moet-w2", "vllm-source"]
    assert names["apps"] == ["default", "doctor", "serve", "validate"]
    assert names["devShells"] == ["default"]
    assert set(names["checks"]) >= {"patch", "kernel-manifest", "formatting", "unit-tests", "service", "lock"}


def test_the_source_is_the_archive_with_the_patch_and_nothing_else(run):
    source = built(run, "vllm-source")
    assert built(run, "vllm-source") == source
    assert built(run, "vllm-source", "--rebuild") == source  # builds again and compares every byte
    pins = pin_table.load()
    prefix = pins.get("vllm.sdist.root") + "/"
    patched = {entry.path: entry.after for entry in ledger.read_files(ROOT / "patch" / "FILES.txt")}
    seen = set()
    with tarfile.open(fetch.cache_dir() / pins.artifact("vllm.sdist").filename) as tar:
        for member in filter(tarfile.TarInfo.isfile, tar):
            name = member.name.removeprefix(prefix)
            data = (source / name).read_bytes()
            expected = patched.get(name) or hashlib.sha256(tar.extractfile(member).read()).hexdigest()
            assert hashlib.sha256(data).hexdigest() == expected, name
            seen.add(name)
    assert {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()} == seen | set(patched)


def test_the_extension_is_the_tree_and_knows_its_commit(run, tree):
    made = built(run, "moet-w2")
    assert built(run, "moet-w2", "--rebuild") == made
    (site,) = made.glob("lib/python*/site-packages")
    package = tree / "runtime_ext" / "src" / "moet_w2"
    for path in package.rglob("*.py"):
        assert (site / "moet_w2" / path.relative_to(package)).read_bytes() == path.read_bytes()
    cubins = sorted(str(path.relative_to(tree / "kernels")) for path in (tree / "kernels").rglob("*.cubin"))
    prebuilt = site / "moet_w2" / "kernels" / "prebuilt"
    assert sorted(str(path.relative_to(prebuilt)) for path in prebuilt.rglob("*.cubin")) == cubins
    assert (site / "moet_w2" / "pins.toml").read_bytes() == (tree / "pins.toml").read_bytes()
    (revision,) = site.glob("*.dist-info/revision.json")
    assert json.loads(revision.read_text()) == {"revision": "unknown", "dirty": True}  # its inputs are overridden


def test_a_commit_and_a_dirty_tree_are_told_apart(run, nix, tree, edit):
    """Nix calls a tree dirty whose inputs are overridden, so this one has them in its lock file."""

    def revision() -> dict[str, object]:
        return json.loads(run("eval", f".#packages.{SYSTEM}.moet-w2.revision", "--raw", inputs=None))

    for name, url in nix.inputs().items():
        edit("flake.nix", functools.partial(re.sub, rf'({name}.*?url = ")[^"]*', rf"\g<1>{url}", flags=re.S))
    run("flake", "lock", inputs=None)
    git(tree, "commit", "-q", "-a", "-m", "inputs of this machine")
    assert revision() == {"revision": git(tree, "rev-parse", "HEAD").strip(), "dirty": False}
    edit("README.md", lambda text: text + "\n")
    assert revision() == {"revision": "unknown", "dirty": True}


def test_a_change_elsewhere_builds_nothing_again(run, edit):
    before = run("eval", f".#packages.{SYSTEM}.vllm-source.drvPath")
    edit("README.md", lambda text: text + "\n")
    assert run("eval", f".#packages.{SYSTEM}.vllm-source.drvPath") == before
    edit("patch/FILES.txt", lambda text: text + "# a comment\n")
    assert run("eval", f".#packages.{SYSTEM}.vllm-source.drvPath") != before


def test_a_wrong_hash_is_refused(edit, refuses):
    sha256 = pin_table.load().artifact("vllm.sdist").sha256
    edit("pins.toml", lambda text: text.replace(sha256, "0" * 64))
    said = refuses("vllm-source")
    assert "hash mismatch in fixed-output derivation" in said and pin_table.load().get("vllm.sdist.filename") in said


def test_a_patch_that_does_not_apply_is_refused(edit, refuses):
    name = f"patch/{pin_table.load().patch_name()}"

    def spoil(text: str) -> str:
        context = next(line for line in text.splitlines() if line.startswith(" ") and line.strip())
        return text.replace(context, context + " # other", 1)

    edit(name, spoil)
    assert f"source: error: {Path(name).name} does not apply to" in refuses("vllm-source")


@pytest.mark.parametrize(
    ("name", "how", "attribute", "message"),
    [
        ("patch/FILES.txt", lambda t: t + "# by hand\n", "patch", "patch/FILES.txt differs from what the series"),
        ("kernels/src/routing.cu", lambda t: t + "// by hand\n", "kernel-manifest", "routing"),
        ("flake.lock", lambda t: t.replace('"rev": "1', '"rev": "2', 1), "lock", "flake.lock has deepgemm at"),
        ("nix/module/hardening.nix", lambda t: t.replace("ProtectHome = true", "ProtectHome = false"), "service",
         "ProtectHome: the unit has 'yes', the module 'no'"),
        ("nix/build_extension.py", lambda t: t.replace('(revision + "\\n").encode()', 'b"{}"'), "extension",
         "extension: error: built as"),
        ("runtime_ext/tests/test_geometry.py", lambda t: t + "\n\ndef test_no():\n    assert False\n", "unit-tests",
         "test_no"),
        ("scripts/clean.sh", lambda t: t.replace('rm -rf .native', 'rm -rf $x'), "formatting", "SC2"),
        ("nix/shell.nix", lambda t: t + "\n# a trailing blank \n", "formatting", "nix: error: a tab, a trailing blank"),
    ],
)  # fmt: skip
def test_each_check_can_fail(edit, refuses, name, how, attribute, message):
    edit(name, how)
    assert message in refuses(check(attribute))


def test_an_input_or_a_compiler_of_another_version_is_refused(run, nix, tmp_path):
    shutil.copytree(nix_host.HERE / "deepgemm", tmp_path / "deepgemm")
    git(tmp_path / "deepgemm", "init", "-q")
    git(tmp_path / "deepgemm", "add", "-A")
    git(tmp_path / "deepgemm", "commit", "-q", "-m", "other")
    shutil.copytree(nix.state / "nixpkgs", tmp_path / "nixpkgs")
    host = tmp_path / "nixpkgs" / "host.nix"
    pinned = pin_table.load().get("cuda.compiler")
    host.write_text(host.read_text().replace(f'cudaCompiler = "{pinned}"', 'cudaCompiler = "1.2"'))
    output = f".#packages.{SYSTEM}.default.drvPath"
    run("eval", output)
    with pytest.raises(BuildError, match="input deepgemm is at [0-9a-f]{40}, pins.toml wants"):
        run("eval", output, inputs={"deepgemm": f"git+file://{tmp_path}/deepgemm"})
    with pytest.raises(BuildError, match=f"nixpkgs has nvcc 1.2, pins.toml wants {pinned}"):
        run("eval", output, inputs={"nixpkgs": f"path:{tmp_path}/nixpkgs"})


def test_kernels_are_compiled_and_compared(run, tree, edit, refuses):
    """For one architecture, with the compiler of the pinned wheels."""
    pins = pin_table.load()
    wheels = [pins.artifact(f"cuda.toolkit.{name}") for name in pins.get("cuda.toolkit")]
    if not os.environ.get("NIX_KERNELS"):
        pytest.skip("a minute of compiling; NIX_KERNELS=1 asks for it")
    if absent := [wheel.filename for wheel in wheels if not (fetch.cache_dir() / wheel.filename).is_file()]:
        pytest.fail(f"{absent[0]} is not in the cache of downloads")
    arch = "sm_90a"
    listed = re.search(r"^kernel_architectures = .*$", (tree / "pins.toml").read_text(), re.M)[0]
    edit("pins.toml", lambda text: text.replace(listed, f'kernel_architectures = ["{arch}"]'))
    for folder in (tree / "kernels" / "cubins").iterdir():
        if folder.name != arch:
            shutil.rmtree(folder)

    def only(text: str) -> str:
        manifest = json.loads(text)
        manifest["cubins"] = {name: entry for name, entry in manifest["cubins"].items() if arch in name}
        return json.dumps(manifest, indent=1) + "\n"

    edit("kernels/MANIFEST.json", only)
    made = built(run, "kernels")
    assert [path.name for path in (made / "cubins").iterdir()] == [arch]
    with (tree / "kernels" / "cubins" / arch / "routing.cubin").open("ab") as file:
        file.write(b"x")
    said = refuses("kernels")
    assert "routing.cubin differ" in said and "kernels: error: committed cubins are not what" in said
