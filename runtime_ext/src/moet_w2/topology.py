"""NUMA facts from sysfs. The root is a parameter, so that tests use a made-up tree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import HostMemoryError

SYSFS = Path("/sys")


@dataclass(frozen=True)
class Locality:
    """The node that mapped layers belong on, and how that is known."""

    node: int
    nodes: tuple[int, ...]
    reason: str


def online_nodes(sysfs: Path = SYSFS) -> tuple[int, ...]:
    """NUMA nodes that are online; a kernel without NUMA has node 0 only."""
    path = sysfs / "devices/system/node/online"
    return parse_list(path.read_text()) if path.is_file() else (0,)


def node_cpus(node: int, sysfs: Path = SYSFS) -> tuple[int, ...]:
    """CPUs of a node; empty where sysfs does not say."""
    path = sysfs / f"devices/system/node/node{node}/cpulist"
    return parse_list(path.read_text()) if path.is_file() else ()


def cpu_locality(guard: int | None, sysfs: Path = SYSFS, allowed: frozenset[int] | None = None) -> Locality:
    """The node of a process that computes on CPUs.

    Args:
        guard: the node the user expects, or None.
        sysfs: root of the tree to read.
        allowed: CPUs this process may run on (default: its affinity).

    Raises:
        HostMemoryError: the guard disagrees, or the process may run on several nodes and no guard chooses.
    """
    nodes = online_nodes(sysfs)
    if guard is not None and guard not in nodes:
        raise HostMemoryError(
            f"VLLM_MOE_W2_MAPPED_NUMA_NODE={guard}: this machine has NUMA nodes {_join(nodes)}; name one of them"
        )
    if len(nodes) == 1:
        return Locality(nodes[0], nodes, "the only node")
    cpus = frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    home = tuple(node for node in nodes if cpus & frozenset(node_cpus(node, sysfs)))
    if guard is not None:
        if home and guard not in home:
            raise HostMemoryError(
                f"VLLM_MOE_W2_MAPPED_NUMA_NODE={guard}, but this process may only run on node {_join(home)}; "
                "change the guard or the process's CPU affinity"
            )
        return Locality(guard, nodes, "named by VLLM_MOE_W2_MAPPED_NUMA_NODE")
    if len(home) == 1:
        return Locality(home[0], nodes, "the only node this process may run on")
    raise HostMemoryError(
        f"this process may run on NUMA nodes {_join(home or nodes)}, so the node for mapped layers is unknown; "
        "set VLLM_MOE_W2_MAPPED_NUMA_NODE or start it under numactl --cpunodebind"
    )


def parse_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format, ``0-3,8`` -> (0, 1, 2, 3, 8)."""
    numbers: list[int] = []
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def _join(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))
