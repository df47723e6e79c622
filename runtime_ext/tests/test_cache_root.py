"""CACHE_ROOT holds what every compiler of the stack builds: each variable is one that the stack reads."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from moet_w2 import cache_root, overrides

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = "CUDA_CACHE_PATH"
LOCKED = set(re.findall(r"^([a-z0-9-]+)==", (REPOSITORY / "requirements" / "cuda.lock").read_text(), re.M)) | {"vllm"}


def installations() -> list[Path]:
    """Package folders of this environment and, where it is built, of the one that serves on a GPU."""
    own = Path(str(importlib.metadata.distribution("vllm").locate_file("")))
    return [own, *REPOSITORY.glob(".native/venv-cuda/lib/python*/site-packages")]


def unread(caches: tuple[cache_root.JitCache, ...]) -> list[str]:
    """Variables that the file which is said to read them does not hold; files that are not installed are passed."""
    found = []
    for cache in caches:
        for folder in installations():
            file = folder / cache.read_by[1]
            if file.is_file() and cache.variable not in file.read_text():
                found.append(f"{cache.variable}: not in {file}")
    return found


def test_what_is_installed_reads_its_variable():
    assert unread(cache_root.JIT_CACHES) == []
    here = [cache for cache in cache_root.JIT_CACHES if (installations()[0] / cache.read_by[1]).is_file()]
    assert {cache.read_by[0] for cache in here} >= {"vllm", "torch", "triton", "apache-tvm-ffi"}


def test_a_variable_that_nothing_reads_is_found():
    wrong = cache_root.JitCache("TRITON_CACHE_FOLDER", "triton", ("triton", "triton/knobs.py"))
    assert [line.split(":")[0] for line in unread((wrong,))] == ["TRITON_CACHE_FOLDER"] * len(installations())


@pytest.mark.parametrize("cache", cache_root.JIT_CACHES, ids=lambda cache: cache.variable)
def test_every_reader_is_a_part_of_what_serves_on_a_gpu(cache):
    assert cache.read_by[0] in LOCKED or cache.variable == DRIVER


def test_folders_are_distinct():
    assert len({cache.folder for cache in cache_root.JIT_CACHES}) == len(cache_root.JIT_CACHES)


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        ({}, "~/.cache/moet"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/moet"),
        ({"XDG_CACHE_HOME": ""}, "~/.cache/moet"),
        ({"XDG_CACHE_HOME": "relative"}, "~/.cache/moet"),
        ({"XDG_CACHE_HOME": "/x", "CACHE_ROOT": "/c"}, "/c"),
    ],
)
def test_root(environ, root):
    assert overrides.read(environ).root == Path(root).expanduser()
