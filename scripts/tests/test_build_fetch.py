"""Downloads: only the pinned content is ever used, and an interrupted one goes on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fetch
import pytest
from build_errors import BuildError


def test_a_good_file_is_published_and_not_downloaded_twice(file_server, tmp_path: Path) -> None:
    artifact = file_server.artifact()
    path = fetch.fetch(artifact, tmp_path)
    assert path.read_bytes() == file_server.body
    fetch.fetch(artifact, tmp_path)
    assert len(file_server.seen) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.whl"]


def test_wrong_content_is_refused_and_removed(file_server, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="sha256 is .*pins.toml says 0000"):
        fetch.fetch(file_server.artifact("0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cut_transfer_goes_on_from_what_arrived(file_server, tmp_path: Path) -> None:
    file_server.cut_after, file_server.cuts = 300_000, 2
    path = fetch.fetch(file_server.artifact(), tmp_path, pause_s=0)
    assert path.read_bytes() == file_server.body
    assert file_server.seen == [None, "bytes=300000-", "bytes=600000-"]


def test_a_mirror_that_ignores_ranges_is_read_from_the_start(file_server, tmp_path: Path) -> None:
    file_server.ranges = False
    (tmp_path / "file.whl.part").write_bytes(file_server.body[:1000])
    assert fetch.fetch(file_server.artifact(), tmp_path).read_bytes() == file_server.body


def test_a_complete_part_needs_no_transfer(file_server, tmp_path: Path) -> None:
    (tmp_path / "file.whl.part").write_bytes(file_server.body)
    assert fetch.fetch(file_server.artifact(), tmp_path).read_bytes() == file_server.body


def test_a_part_that_is_too_long_is_started_again(file_server, tmp_path: Path) -> None:
    (tmp_path / "file.whl.part").write_bytes(file_server.body + b"more")
    assert fetch.fetch(file_server.artifact(), tmp_path, pause_s=0).read_bytes() == file_server.body


def test_a_part_of_something_else_is_refused(file_server, tmp_path: Path) -> None:
    (tmp_path / "file.whl.part").write_bytes(b"\xff" * 1000)
    with pytest.raises(BuildError, match="the file was deleted"):
        fetch.fetch(file_server.artifact(), tmp_path)
    assert fetch.fetch(file_server.artifact(), tmp_path).read_bytes() == file_server.body


def test_a_damaged_file_in_the_cache_is_downloaded_again(file_server, tmp_path: Path) -> None:
    (tmp_path / "file.whl").write_bytes(file_server.body[:-1] + b"?")
    assert fetch.fetch(file_server.artifact(), tmp_path).read_bytes() == file_server.body


def test_giving_up_keeps_what_arrived_and_says_what_to_do(file_server, tmp_path: Path) -> None:
    file_server.cut_after, file_server.cuts = 1000, 99
    with pytest.raises(BuildError, match=r"4000 bytes are kept in .*file\.whl\.part; run the same command again"):
        fetch.fetch(file_server.artifact(), tmp_path, pause_s=0)
    assert not (tmp_path / "file.whl").exists()


def test_a_missing_file_is_not_asked_for_again(file_server, tmp_path: Path) -> None:
    file_server.status = 404
    with pytest.raises(BuildError, match="404"):
        fetch.fetch(file_server.artifact(), tmp_path, pause_s=0)
    assert len(file_server.seen) == 1


def test_a_killed_download_leaves_only_a_part_that_the_next_call_uses(file_server, tmp_path: Path) -> None:
    pipe = tmp_path / "slow"
    os.mkfifo(pipe)
    program = (
        "import sys, urllib.request, io, fetch\n"
        "from pins import Artifact\n"
        "real = urllib.request.urlopen\n"
        "class Slow:\n"
        "    def __init__(self, inner): self.inner, self.reads = inner, 0\n"
        "    status = property(lambda self: self.inner.status)\n"
        "    headers = property(lambda self: self.inner.headers)\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *a): self.inner.close()\n"
        "    def read(self, n):\n"
        "        self.reads += 1\n"
        "        if self.reads > 1: open(sys.argv[4]).read()\n"
        "        return self.inner.read(1000)\n"
        "urllib.request.urlopen = lambda *a, **k: Slow(real(*a, **k))\n"
        "from pathlib import Path\n"
        "fetch.fetch(Artifact('file.whl', sys.argv[1], sys.argv[2]), Path(sys.argv[3]))\n"
    )
    artifact = file_server.artifact()
    folder = tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": str(Path(fetch.__file__).parent), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", program, artifact.url, artifact.sha256, str(folder), str(pipe)]
    child = subprocess.Popen(command, env=environment)
    part = folder / "file.whl.part"
    deadline = time.monotonic() + 30
    while not part.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert part.exists() and not (folder / "file.whl").exists()
    assert fetch.fetch(artifact, folder).read_bytes() == file_server.body


def test_adopting_takes_only_the_pinned_file(file_server, tmp_path: Path) -> None:
    candidate = tmp_path / "other.whl"
    candidate.write_bytes(b"something else")
    assert not fetch.adopt(candidate, file_server.artifact(), tmp_path / "cache")
    candidate.write_bytes(file_server.body)
    assert fetch.adopt(candidate, file_server.artifact(), tmp_path / "cache")
    assert (tmp_path / "cache" / "file.whl").read_bytes() == file_server.body


def test_the_cache_folder_follows_xdg(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_dir() == tmp_path / "moet" / "downloads"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert fetch.cache_dir() == Path("/home/someone/.cache/moet/downloads")
