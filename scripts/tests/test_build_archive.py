"""Unpacking: the part that is asked for, modes kept, nothing outside the folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from archive import unpack
from build_errors import BuildError


def make(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            member.size = 4 if member.isfile() else 0
            tar.addfile(member, io.BytesIO(b"text") if member.isfile() else None)
    return path


def member(name: str, mode: int = 0o644, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.linkname = mode, kind, link
    return info


def test_only_the_prefix_is_unpacked_with_its_modes(tmp_path: Path) -> None:
    archive = make(
        tmp_path / "a.tar.gz",
        member("root/vllm", kind=tarfile.DIRTYPE),
        member("root/vllm/a.py"),
        member("root/vllm/run.sh", mode=0o755),
        member("root/docs/b.md"),
    )
    unpack(archive, tmp_path / "out", "root/vllm/")
    files = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert files == [Path("root/vllm/a.py"), Path("root/vllm/run.sh")]
    assert (tmp_path / "out/root/vllm/run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "bad",
    [
        member("root/../../out.py"),
        member("/root/out.py"),
        member("root/link", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("root/hard", kind=tarfile.LNKTYPE, link="root/x"),
        member("root/pipe", kind=tarfile.FIFOTYPE),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    archive = make(tmp_path / "a.tar.gz", bad)
    with pytest.raises(BuildError, match="leads out of|neither a file nor a folder"):
        unpack(archive, tmp_path / "out", "root/")
