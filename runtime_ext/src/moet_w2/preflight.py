"""Is there enough lockable host memory for the mapped layers? Asked before any weight is read.

Inside a container /proc/meminfo tells of the whole machine, so the smallest of three is what counts: the
machine's MemAvailable, the cgroup's limit less what it uses (its file cache does not count, the kernel drops
it under pressure), and what is free on the node.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import HostMemoryError
from .topology import Locality

_CAP_IPC_LOCK = 14
_UNLIMITED = 1 << 62  # cgroup v1 writes "no limit" as a number about this large


@dataclass(frozen=True)
class Available:
    """Bytes that one source says can still be taken, and what to do where they are too few."""

    source: str
    nbytes: int
    remedy: str


def check(nbytes: int, locality: Locality | None, root: Path = Path("/")) -> None:
    """Refuse to start where ``nbytes`` of locked memory on the node cannot be had.

    Args:
        nbytes: bytes of all mapped layers together.
        locality: the node, or None where it is not known yet: then every limit but the node's is asked.
        root: where /proc and /sys are, for tests.

    Raises:
        HostMemoryError: the tightest limit is too small; the message names it, bytes needed, bytes there and
            the remedy.
    """
    where = "" if locality is None else f" on NUMA node {locality.node}"
    tightest = min(limits(locality, root), key=lambda limit: limit.nbytes, default=None)
    if tightest is not None and tightest.nbytes < nbytes:
        raise HostMemoryError(
            f"mapped layers need {nbytes:,} bytes of locked host memory{where}; "
            f"{tightest.source} leaves {tightest.nbytes:,}: {tightest.remedy}"
        )


def limits(locality: Locality | None, root: Path = Path("/")) -> list[Available]:
    """Every limit that can be read here."""
    node = () if locality is None else _node(locality.node, root)
    return [*_memlock(root), *_machine(root), *node, *_cgroups(root)]


def _memlock(root: Path) -> Iterator[Available]:
    status = _table(root / "proc/self/status")
    if int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1:
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY:
        yield Available(
            "the memlock limit",
            soft - _kib(status.get("VmLck", "0 kB")),
            "raise it (ulimit -l unlimited, LimitMEMLOCK=infinity, docker run --ulimit memlock=-1)",
        )


def _machine(root: Path) -> Iterator[Available]:
    available = _table(root / "proc/meminfo").get("MemAvailable")
    if available is not None:
        yield Available("MemAvailable of the machine", _kib(available), "end other programs or map fewer layers")


def _node(node: int, root: Path) -> Iterator[Available]:
    path = root / f"sys/devices/system/node/node{node}/meminfo"
    if path.is_file():
        # Lines read "Node 0 MemFree:  1 kB".
        lines = (line.split(None, 2)[2] for line in path.read_text().splitlines() if line.strip())
        facts = {key.strip(): value for key, _, value in (line.partition(":") for line in lines)}
        free = sum(_kib(facts.get(name, "0 kB")) for name in ("MemFree", "Inactive(file)", "Active(file)"))
        yield Available(f"NUMA node {node}", free, "free memory on that node or map fewer layers")


def _cgroups(root: Path) -> Iterator[Available]:
    for folder, limit_name, usage_name in _cgroup_folders(root):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cache = sum(int(stat.get(f"{name}_file", 0)) for name in ("inactive", "active"))
        yield Available(
            f"the memory limit of cgroup {folder.relative_to(root)}",
            limit - usage + cache,
            "raise it (MemoryMax=, docker run --memory) or map fewer layers",
        )


def _cgroup_folders(root: Path) -> Iterator[tuple[Path, str, str]]:
    """The process's memory cgroup and its ancestors, version 2 or 1. A limit may stand at any of them."""
    path = root / "proc/self/cgroup"
    for line in path.read_text().splitlines() if path.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            base, files = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, files = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / name.lstrip("/")
        for each in (folder, *folder.parents):
            if (each / files[0]).is_file():
                yield each, *files
            if each == base:
                break


def _table(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in path.read_text().splitlines())}


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


def _number(path: Path) -> int | None:
    """Content of a cgroup file; "max" and a missing file are None."""
    text = path.read_text().strip() if path.is_file() else "max"
    return None if text == "max" else int(text)
