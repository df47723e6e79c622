"""A bundle of small wheels becomes an environment without a network, by the build's own steps."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fetch
import import_check
import lockfile
import offline_bundle
import offline_install
import offline_make
import offline_manifest
import offline_parts
import offline_tree
import offline_wheelhouse
import pins
import piprun
import pytest
import torch_wheel
import venvs
import wheels
from build_errors import MISSING, BuildError
from offline_manifest import Manifest

TABLE = pins.load()
ROOT = pins.ROOT


def silent(text: str) -> None:
    pass


def wheel(folder: Path, name: str) -> Path:
    """A wheel of one module."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "value = 1\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build of small packages: `alpha` is locked, `vllm` and `moet_w2` are ours. Returns the folder of wheels."""
    folder = tmp_path / "made"
    folder.mkdir()
    alpha = wheel(folder, "alpha")
    wheel(folder, "vllm")
    wheel(folder, "moet_w2")
    pip = TABLE.artifact("tools.pip")
    shutil.copy(fetch.cache_dir() / pip.filename, folder)
    lock = tmp_path / "cuda.lock"
    lock.write_text(f"# inputs x\nalpha==1.0 --hash=sha256:{fetch.sha256_of(alpha)}\n")
    monkeypatch.setattr(lockfile, "lock_path", lambda variant: lock)
    monkeypatch.setattr(lockfile, "check", lambda *a: None)
    monkeypatch.setattr(import_check, "run", lambda *a: {"gpus": 0})
    monkeypatch.setattr(torch_wheel, "obtain", lambda *a: None)
    monkeypatch.setattr(venvs, "DISK_BYTES", {"cuda": 0})
    extension = tmp_path / "extension"
    extension.mkdir()
    (extension / "pyproject.toml").write_text("[project]\nname = 'moet_w2'\n")
    monkeypatch.setattr(venvs, "EXTENSION", extension)
    return folder


@pytest.fixture
def bundle(small: Path, tmp_path: Path) -> Path:
    """A bundle of them, with the stand-in of a tree."""
    out = tmp_path / "bundle"
    (small / "tree.tar.gz").write_bytes(b"a tree")
    names = [f"wheels/{path.name}" for path in small.glob("*.whl") if path.name.startswith(("alpha", "pip"))]
    names += [f"dist/{path.name}" for path in small.glob("*.whl") if path.name.startswith(("vllm", "moet"))]
    files = [("tree.tar.gz", small / "tree.tar.gz"), *((name, small / Path(name).name) for name in names)]
    write_bundle(files, out)
    return out


def write_bundle(files: list[tuple[str, Path]], out: Path, **changed: object) -> Manifest:
    pieces, parts = offline_parts.cut(files, out, 1 << 20, silent)
    fields = {
        "variant": "cuda",
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "system": TABLE.get("platform.system"),
        "machine": TABLE.get("platform.machine"),
        "commit": "abc",
        "inputs": offline_make.inputs(TABLE, "cuda"),
        "part_bytes": 1 << 20,
        "files": tuple(pieces),
        "parts": tuple(parts),
    }
    manifest = Manifest(**{**fields, **changed})
    manifest.write(out)
    return manifest


def install(bundle: Path, native: Path) -> list[str]:
    said: list[str] = []
    assert offline_install.install(TABLE, bundle, native, said.append) == "cuda"
    return said


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pip and downloads run into a closed port; a variable of the machine's pip must not count."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    yield


def test_a_bundle_becomes_the_environment_that_the_build_makes(bundle: Path, tmp_path: Path, no_network) -> None:
    native = tmp_path / "tree" / ".native"
    before = dict(os.environ)
    said = install(bundle, native)
    assert os.environ == before
    assert said == [f"part-{k:04d} is right" for k in range(len(offline_manifest.read(bundle).parts))]
    python = native / "venv-cuda" / "bin" / "python"
    code = "import alpha, vllm, moet_w2; print(alpha.value + vllm.value + moet_w2.value)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "3\n"
    # What build-native.sh looks at: the stamp behind the link, our wheel and its note.
    built = wheels.current(TABLE, "cuda", native)
    assert built is not None and venvs.is_ready(native, venvs.wanted(TABLE, "cuda", built.sha256))
    assert not (native / "offline" / "install").exists()
    assert install(bundle, native) == [".native/venv-cuda is up to date"]


def test_an_interrupted_installation_keeps_what_it_read(
    bundle: Path, tmp_path: Path, no_network, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = tmp_path / "tree" / ".native"
    with monkeypatch.context() as patch:
        patch.setattr(venvs, "ensure", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            install(bundle, native)
    assert not (native / "venv-cuda").exists()
    shutil.move(bundle / "part-0001", tmp_path / "elsewhere")  # not needed any more
    calls: list[tuple] = []
    monkeypatch.setattr(venvs, "ensure", lambda *a: calls.append(a))
    assert install(bundle, native) == []
    ((_, _, built, variant, extension),) = calls
    assert (built.path.name, variant) == ("vllm-1.0-py3-none-any.whl", "cuda")
    assert extension.name == "moet_w2-1.0-py3-none-any.whl"


def test_a_bad_part_leaves_no_environment(bundle: Path, tmp_path: Path, no_network) -> None:
    (bundle / "part-0001").write_bytes((bundle / "part-0001").read_bytes()[:-1])
    with pytest.raises(BuildError, match="part-0001 has"):
        install(bundle, tmp_path / "tree" / ".native")
    assert not (tmp_path / "tree" / ".native" / "venv-cuda").exists()


def test_the_bundle_of_another_tree_is_refused(bundle: Path, tmp_path: Path) -> None:
    (venvs.EXTENSION / "module.py").write_text("edited")
    with pytest.raises(BuildError, match=r"from another tree \(extension\): check out abc, or unpack the bundle's"):
        install(bundle, tmp_path / "tree" / ".native")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("python", "3.99", "is for Python 3.99, this is"), ("machine", "riscv64", "is for Linux riscv64; this is")],
)
def test_another_python_or_machine_is_refused(bundle: Path, small: Path, tmp_path: Path, field, value, message) -> None:
    write_bundle([("tree.tar.gz", small / "tree.tar.gz")], bundle, **{field: value})
    with pytest.raises(BuildError, match=message) as caught:
        offline_install.install(TABLE, bundle, tmp_path / ".native", silent)
    assert caught.value.code == MISSING


# -- making


def test_the_wheelhouse_asks_only_for_what_it_has_not(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def download(pip_wheel: Path, python: Path, arguments: list[str]) -> None:
        asked.append(arguments)
        assert "--require-hashes" in arguments and "--no-deps" in arguments
        shutil.copy(small / "alpha-1.0-py3-none-any.whl", arguments[arguments.index("--dest") + 1])

    monkeypatch.setattr(offline_wheelhouse, "pip", download)
    folder = tmp_path / "house"
    folder.mkdir()
    (folder / "alpha-1.0-py3-none-any.whl").write_bytes(b"cut short")
    (folder / "old-0.1-py3-none-any.whl").write_bytes(b"of another lock")
    (found,) = offline_wheelhouse.gather(TABLE, "cuda", folder, silent)
    assert found.read_bytes() == (small / "alpha-1.0-py3-none-any.whl").read_bytes()
    assert list(folder.iterdir()) == [found] and len(asked) == 1
    offline_wheelhouse.gather(TABLE, "cuda", folder, silent)
    assert len(asked) == 1
    found.unlink()
    monkeypatch.setattr(offline_wheelhouse, "pip", lambda *a: None)
    with pytest.raises(BuildError, match="no file with the locked sha256 of alpha==1.0"):
        offline_wheelhouse.gather(TABLE, "cuda", folder, silent)


def test_the_real_locks_can_be_read_and_an_unhashed_line_cannot() -> None:
    for variant in pins.VARIANTS:
        text = (ROOT / "requirements" / f"{variant}.lock").read_text()
        assert len(offline_wheelhouse.rows(text, "x")) == text.count("--hash=sha256:") > 100
    with pytest.raises(BuildError, match="x: not a line of a lock: 'alpha==1.0'"):
        offline_wheelhouse.rows("alpha==1.0\n", "x")


def test_the_extension_wheel_is_whole_and_has_no_dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built by this environment's setuptools: the locked one lies in a wheelhouse, and tests download nothing."""

    def without_isolation(pip_wheel: Path, python: Path, arguments: list[str]) -> None:
        assert arguments[arguments.index("--find-links") + 1] == str(tmp_path / "house")
        piprun.pip(pip_wheel, python, [*arguments, "--no-build-isolation"])

    monkeypatch.setattr(offline_make, "pip", without_isolation)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    pip_wheel = fetch.cache_dir() / TABLE.artifact("tools.pip").filename
    built = offline_make.extension_wheel(pip_wheel, tmp_path / "house", tmp_path / "out")
    assert os.environ["SOURCE_DATE_EPOCH"] == "1"
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    cubins = [path.name for path in (ROOT / "kernels" / "cubins").rglob("*.cubin")]
    assert sorted(Path(name).name for name in names if name.endswith(".cubin")) == sorted(cubins)
    assert {"moet_w2/plugin.py", "moet_w2/pins.toml"} <= set(names) and not any("tests/" in name for name in names)


# -- the tree, and a host that has nothing


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree with a script that says what it was called with, a link, and a file that git does not know."""
    root = tmp_path / "checkout"
    (root / "scripts").mkdir(parents=True)
    (root / "scripts" / "offline-bundle.sh").write_text('#!/bin/sh\necho "called: $*"\n')
    (root / "scripts" / "offline-bundle.sh").chmod(0o755)
    (root / "pins.toml").write_text("a = 1\n")
    (root / "package").mkdir()
    (root / "package" / "pins.toml").symlink_to("../pins.toml")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")
    (root / "untracked").write_text("not ours")
    return root


def test_the_tree_comes_back_as_git_tracks_it(checkout: Path, tmp_path: Path) -> None:
    offline_tree.pack(checkout, tmp_path / "one")
    os.utime(checkout / "pins.toml", (0, 0))
    offline_tree.pack(checkout, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert not offline_tree.commit_of(checkout).endswith("-dirty")
    (checkout / "pins.toml").write_text("a = 2\n")
    assert offline_tree.commit_of(checkout).endswith("-dirty")
    offline_tree.unpack(tmp_path / "one", tmp_path / "tree")
    assert os.readlink(tmp_path / "tree" / "package" / "pins.toml") == "../pins.toml"
    assert os.access(tmp_path / "tree" / "scripts" / "offline-bundle.sh", os.X_OK)
    assert not (tmp_path / "tree" / "untracked").exists()
    with pytest.raises(BuildError, match="tree exists; name a folder that does not"):
        offline_tree.unpack(tmp_path / "one", tmp_path / "tree")


def test_a_file_that_the_tree_would_lack_stops_the_making(checkout: Path) -> None:
    offline_tree.require_tracked(checkout, checkout / "package")
    (checkout / "package" / "new.py").write_text("")
    with pytest.raises(BuildError, match=r"package/new\.py would not be in the bundle: .*add or remove it"):
        offline_tree.require_tracked(checkout, checkout / "package")


@pytest.mark.parametrize(("name", "link"), [("../x", ""), ("/x", ""), ("a/link", "../../x"), ("link", "/etc/passwd")])
def test_an_archive_that_leads_out_is_refused(tmp_path: Path, name: str, link: str) -> None:
    with tarfile.open(tmp_path / "tree.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        tar.addfile(info)
    with pytest.raises(BuildError, match="leads out of the archive"):
        offline_tree.unpack(tmp_path / "tree.tar.gz", tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_host_with_only_python_starts_from_the_bundle(checkout: Path, tmp_path: Path, small: Path) -> None:
    """install.pyz in an empty environment: it unpacks the tree and hands over what it has read."""
    offline_tree.pack(checkout, small / "tree.tar.gz")
    bundle = tmp_path / "bundle"
    alpha = next(small.glob("alpha*"))
    manifest = write_bundle([("tree.tar.gz", small / "tree.tar.gz"), (f"wheels/{alpha.name}", alpha)], bundle)
    starter = offline_make.write_starter(bundle)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-I", str(starter), str(tmp_path / "host" / "moet")]
    part = bundle / "part-0000"
    good = part.read_bytes()
    part.write_bytes(good[:-1])
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "part-0000 has" in done.stderr and not (tmp_path / "host" / "moet").exists()
    part.write_bytes(good)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, f"called: install {bundle}\n"), done.stderr
    kept = tmp_path / "host" / "moet" / ".native" / "offline" / "install"
    assert (kept / "wheels" / alpha.name).read_bytes() == alpha.read_bytes()
    said: list[str] = []
    offline_parts.join(manifest, bundle, kept, said.append)
    assert said == []
    again = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert again.returncode == 1 and "exists; name a folder that does not" in again.stderr
    usage = subprocess.run(command[:3], capture_output=True, text=True, env=environment)
    assert usage.returncode == 2 and "install.pyz FOLDER" in usage.stderr


def test_the_starter_needs_the_standard_library_alone() -> None:
    """Its modules import each other and nothing else of ours."""
    ours = {path.stem for path in (ROOT / "scripts" / "lib").glob("*.py")}
    for name in offline_make._STARTER_MODULES:
        text = (ROOT / "scripts" / "lib" / f"{name}.py").read_text()
        imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
        assert imported & ours <= set(offline_make._STARTER_MODULES), name
        assert imported - ours <= set(sys.stdlib_module_names), name


# -- the command


@pytest.mark.parametrize(
    ("text", "size"), [("62MB", 62_000_000), ("1GiB", 1 << 30), ("1048576", 1 << 20), ("2 mib", 2 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert offline_bundle.part_bytes(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1MB", "1.5GB", "1TB", "10", "1000KB"])
def test_bad_sizes_are_told_what_is_allowed(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"write a number with KB, MB|name a larger size"):
        offline_bundle.part_bytes(text)


@pytest.mark.parametrize(
    "arguments", [[], ["pack"], ["make"], ["make", "x", "--variant", "gpu"], ["make", "x", "--part-size", "1"]]
)
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        offline_bundle.main(arguments)
    assert caught.value.code == 2


def test_a_bundle_of_another_identity_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parts and manifest agree with each other; only what `make` printed tells which bundle it should be."""
    right = offline_manifest.read(bundle).identity
    assert offline_bundle.main(["verify", str(bundle), "--identity", right]) == 0
    for verb in ("verify", "install"):
        assert offline_bundle.main([verb, str(bundle), "--identity", "0" * 64]) == 1
        assert f"identity is {right}, --identity says 0000" in capsys.readouterr().err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = f"offline: error: {tmp_path}/MANIFEST.json does not exist; copy it again"
    assert offline_bundle.main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(message)
    script = ROOT / "scripts" / "offline-bundle.sh"
    done = subprocess.run([script, "install", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith(message) and len(done.stderr.splitlines()) == 1
