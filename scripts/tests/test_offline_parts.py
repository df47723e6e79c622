"""The parts of a bundle: cut and put together byte for byte, resumed after any cut, every kind of bad part named."""

from __future__ import annotations

import json
from pathlib import Path

import offline_manifest
import offline_parts
import pytest
from build_errors import MISSING, BuildError
from offline_manifest import NAME, Manifest

PART = 1000
SIZES = {"tree.tar.gz": 700, "dist/vllm-1.whl": 2600, "wheels/none.whl": 0, "wheels/one.whl": 1, "wheels/two.whl": 1900}


def silent(text: str) -> None:
    pass


@pytest.fixture
def source(tmp_path: Path) -> list[tuple[str, Path]]:
    """Files with different bytes, some longer than a part, one empty."""
    files = []
    for seed, (name, size) in enumerate(SIZES.items()):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes((seed * 37 + k * 11 + k // 256) % 256 for k in range(size)))
        files.append((name, path))
    return files


@pytest.fixture
def bundle(tmp_path: Path, source: list[tuple[str, Path]]) -> Path:
    make(source, tmp_path / "bundle")
    return tmp_path / "bundle"


def make(source: list[tuple[str, Path]], out: Path, note: offline_parts.Note = silent) -> Manifest:
    files, parts = offline_parts.cut(source, out, PART, note)
    manifest = Manifest("cpu", "3.11", "Linux", "x86_64", "abc", {"lock": "1"}, PART, tuple(files), tuple(parts))
    manifest.write(out)
    return manifest


def join(bundle: Path, into: Path) -> list[str]:
    """Put it together; returns what was said."""
    said: list[str] = []
    offline_parts.join(offline_manifest.read(bundle), bundle, into, said.append)
    return said


def contents(into: Path, source: list[tuple[str, Path]]) -> bool:
    return all((into / name).read_bytes() == path.read_bytes() for name, path in source)


# -- there and back


def test_the_files_come_back_byte_for_byte(bundle: Path, source: list[tuple[str, Path]], tmp_path: Path) -> None:
    manifest = offline_manifest.read(bundle)
    assert [part.bytes for part in manifest.parts] == [1000] * 5 + [201] and manifest.total == sum(SIZES.values())
    assert len(join(bundle, tmp_path / "into")) == 6
    assert contents(tmp_path / "into", source)
    assert not list((tmp_path / "into").rglob("*.part"))
    said: list[str] = []
    offline_parts.verify(manifest, bundle, said.append)
    assert len(said) == 6


def test_equal_files_give_an_equal_bundle(bundle: Path, source: list[tuple[str, Path]], tmp_path: Path) -> None:
    make(source, tmp_path / "other")
    names = sorted(path.name for path in bundle.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "other").iterdir())
    assert all((bundle / name).read_bytes() == (tmp_path / "other" / name).read_bytes() for name in names)


def test_making_again_writes_only_what_differs(bundle: Path, source: list[tuple[str, Path]]) -> None:
    (bundle / "part-0001").write_bytes(b"x" * PART)
    (bundle / "part-0004").unlink()
    (bundle / "part-0099").write_bytes(b"of a longer bundle")
    said: list[str] = []
    make(source, bundle, said.append)
    assert [text.split()[1] for text in said if text.startswith("wrote")] == ["part-0001", "part-0004"]
    offline_parts.verify(offline_manifest.read(bundle), bundle, silent)
    assert not (bundle / "part-0099").exists()


# -- bad parts


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def exchange(path: Path) -> None:
    other = path.with_name("part-0003")
    mine = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(mine)


BAD = [
    (damage, r"part-0002 is damaged: sha256 is [0-9a-f]{64}, .*; copy it again and run the same command"),
    (truncate, r"part-0002 has 999 of 1,000 bytes; copy it again and run the same command"),
    (extend, r"part-0002 has 1,001 of 1,000 bytes; copy it again"),
    (Path.unlink, r"part-0002 is missing; copy it again and run the same command"),
    (exchange, r"part-0002 holds the content of part-0003; give the parts their own names"),
]


@pytest.mark.parametrize(("harm", "message"), BAD)
def test_the_first_bad_part_is_named_and_the_rest_is_kept(
    bundle: Path, source: list[tuple[str, Path]], tmp_path: Path, harm, message: str
) -> None:
    good = {path.name: path.read_bytes() for path in bundle.glob("part-*")}
    harm(bundle / "part-0002")
    with pytest.raises(BuildError, match=message):
        offline_parts.verify(offline_manifest.read(bundle), bundle, silent)
    with pytest.raises(BuildError, match=message):
        join(bundle, tmp_path / "into")
    assert not (tmp_path / "into" / "dist" / "vllm-1.whl").exists(), "a file of a bad part got its name"
    for name, data in good.items():
        (bundle / name).write_bytes(data)
    said = join(bundle, tmp_path / "into")
    assert contents(tmp_path / "into", source)
    # Sizes are looked at before anything is read; what was read before a wrong content is not read again.
    assert said[0] == ("part-0002 is right" if harm in (damage, exchange) else "part-0000 is right")


def test_several_missing_parts_are_counted(bundle: Path, tmp_path: Path) -> None:
    for name in ("part-0001", "part-0004", "part-0005"):
        (bundle / name).unlink()
    with pytest.raises(BuildError, match=r"part-0001 is missing \(and 2 more of 6 parts\)"):
        join(bundle, tmp_path / "into")


# -- resuming


def test_a_run_that_is_cut_anywhere_goes_on(
    bundle: Path, source: list[tuple[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may end after any write to the disk: here, before any of its journal's lines, and at every rename."""
    append, replace = offline_parts._append, Path.replace
    for allowed in range(12):
        into = tmp_path / f"into-{allowed}"
        left = [allowed]

        def spend(left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1

        with monkeypatch.context() as patch:
            patch.setattr(offline_parts, "_append", lambda *a, spend=spend: (spend(), append(*a)))
            patch.setattr(Path, "replace", lambda path, target, spend=spend: (spend(), replace(path, target))[1])
            with pytest.raises(KeyboardInterrupt):
                join(bundle, into)
        assert len(join(bundle, into)) == 6 - min(max(allowed - 1, 0), 6), allowed
        assert contents(into, source)


def test_a_journal_line_that_was_cut_does_not_count(bundle: Path, source, tmp_path: Path) -> None:
    join(bundle, tmp_path / "into")
    journal = tmp_path / "into" / offline_parts.JOURNAL
    for name, _ in source:
        (tmp_path / "into" / name).rename(tmp_path / "into" / f"{name}.part")
    text = journal.read_text()
    journal.write_text(text[: text.index("part-0004") + 9])
    assert len(join(bundle, tmp_path / "into")) == 2
    assert contents(tmp_path / "into", source)


def test_what_another_bundle_left_is_not_used(bundle: Path, source: list[tuple[str, Path]], tmp_path: Path) -> None:
    join(bundle, tmp_path / "into")
    source[1][1].write_bytes(b"other" * 520)
    make(source, bundle)
    assert len(join(bundle, tmp_path / "into")) == 6
    assert contents(tmp_path / "into", source)


def test_files_that_somebody_changed_are_made_anew(bundle: Path, source, tmp_path: Path) -> None:
    join(bundle, tmp_path / "into")
    (tmp_path / "into" / "wheels" / "two.whl").rename(tmp_path / "into" / "wheels" / "two.whl.part")
    damage(tmp_path / "into" / "wheels" / "two.whl.part")
    with pytest.raises(BuildError, match=r"wheels/two\.whl is not right although every part was; run the same command"):
        join(bundle, tmp_path / "into")
    join(bundle, tmp_path / "into")
    assert contents(tmp_path / "into", source)


def test_too_little_room_is_said_first(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"bytes free, .* are needed; free some") as caught:
        offline_parts.require_room(tmp_path, 1 << 62)
    assert caught.value.code == MISSING


# -- the manifest


def test_no_manifest_is_an_unfinished_or_uncopied_bundle(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=rf"{NAME} does not exist; copy it again .*, or make the bundle again"):
        offline_manifest.read(tmp_path)


def edit(**fields: object):
    return lambda content: {**content, **fields}


@pytest.mark.parametrize(
    "change",
    [
        edit(part_bytes=999),
        edit(variant="cuda"),
        edit(files=[]),
        lambda content: {key: value for key, value in content.items() if key != "parts"},
        lambda content: {**content, "files": [{**file, "bytes": file["bytes"] + 1} for file in content["files"]]},
    ],
)
def test_a_manifest_that_was_changed_is_not_believed(bundle: Path, change) -> None:
    path = bundle / NAME
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BuildError, match=f"{NAME} is damaged .*copy it again"):
        offline_manifest.read(bundle)


def test_a_manifest_that_was_cut_is_damaged(bundle: Path) -> None:
    (bundle / NAME).write_text((bundle / NAME).read_text()[:200])
    with pytest.raises(BuildError, match="is damaged"):
        offline_manifest.read(bundle)


def test_a_later_schema_is_refused(bundle: Path) -> None:
    path = bundle / NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(BuildError, match="schema is 99, this reads 1; use the bundle's own tree"):
        offline_manifest.read(bundle)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "wheels/../../x", "other/x", ""])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    """Even with a manifest that is consistent in itself."""
    piece = offline_manifest.Piece(name, 0, "0" * 64)
    Manifest("cpu", "3.11", "Linux", "x86_64", "abc", {}, PART, (piece,), ()).write(tmp_path)
    with pytest.raises(BuildError, match="is no entry of a bundle"):
        offline_manifest.read(tmp_path)
