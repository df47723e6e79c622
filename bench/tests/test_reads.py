import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import reads
import uring
from safetensors import safe_open
from startup_files import Noise

NBYTES = 1 << 20


def test_every_way_reads_what_was_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(reads, "RINGS", ((64 << 10, 3), (1 << 20, 4)))
    monkeypatch.setattr(reads.importlib.util, "find_spec", lambda name: None)
    try:
        uring.Ring(4).__exit__()
    except OSError:
        pytest.skip("this kernel does not let us have io_uring")
    try:
        result = reads.measure(tmp_path, count=3, repeats=1, nbytes=NBYTES)
    except OSError as error:
        pytest.skip(f"this filesystem takes no direct reads: {error}")
    assert set(result["gib_per_s"]) == {"threads", "io_uring_0mib_depth_3", "io_uring_1mib_depth_4"}
    assert result["ratio_to_threads"]["threads"] == 1.0


def test_other_bytes_than_were_written_end_the_benchmark(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(reads, "RINGS", ())
    monkeypatch.setattr(reads, "threads", lambda files, memory: None)
    with pytest.raises(SystemExit, match="threads read other bytes"):
        reads.measure(tmp_path, count=1, repeats=1, nbytes=NBYTES)


def test_the_files_are_safetensors_files(tmp_path: Path) -> None:
    noise = Noise()
    file = reads.make_files(tmp_path, 2, NBYTES, noise)[1]
    with safe_open(file, framework="numpy") as shard:
        offset = noise.offset(1, 0)
        assert (shard.get_tensor("planes.1") == noise.pool[offset : offset + NBYTES]).all()
