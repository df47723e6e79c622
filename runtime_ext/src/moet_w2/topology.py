"""Which NUMA node mapped layers belong on. Facts come from sysfs, whose root is a parameter for tests.

Nothing is guessed: on a machine with several nodes an unknown locality is an error.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import HostMemoryError

SYSFS = Path("/sys")
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")


@dataclass(frozen=True)
class Locality:
    """The node that mapped layers belong on.

    Attributes:
        node: the node.
        nodes: every node that is online.
        reason: how the node is known, for the audit.
        cpus: the node's CPUs, empty where sysfs does not say.
        pci: PCI address of the GPU, None where CPUs compute.
    """

    node: int
    nodes: tuple[int, ...]
    reason: str
    cpus: tuple[int, ...] = ()
    pci: str | None = None


@dataclass(frozen=True)
class Allowed:
    """What the process's cpuset and affinity leave it."""

    cpus: frozenset[int]
    nodes: frozenset[int]


def allowed(status: Path = Path("/proc/self/status")) -> Allowed:
    """CPUs this process may run on, and nodes it may take memory from."""
    nodes: tuple[int, ...] = ()
    for line in status.read_text().splitlines():
        if line.startswith("Mems_allowed_list:"):
            nodes = parse_list(line.partition(":")[2])
    return Allowed(frozenset(os.sched_getaffinity(0)), frozenset(nodes))


def online_nodes(sysfs: Path = SYSFS) -> tuple[int, ...]:
    """NUMA nodes that are online; a kernel without NUMA has node 0 only."""
    path = sysfs / "devices/system/node/online"
    return parse_list(path.read_text()) if path.is_file() else (0,)


def node_cpus(node: int, sysfs: Path = SYSFS) -> tuple[int, ...]:
    """CPUs of a node; empty where sysfs does not say."""
    path = sysfs / f"devices/system/node/node{node}/cpulist"
    return parse_list(path.read_text()) if path.is_file() else ()


def normalize_pci(text: str) -> str:
    """``31:00.0``, ``0000:31:00.0`` and ``00000000:31:00.0`` all become ``0000:31:00.0``.

    Raises:
        HostMemoryError: the text is no PCI address.
    """
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        raise HostMemoryError(f"{text!r} is not a PCI address; write it as nvidia-smi does, such as 0000:31:00.0")
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


def gpu_locality(
    pci: str,
    guard_node: int | None = None,
    guard_pci: str | None = None,
    sysfs: Path = SYSFS,
    limits: Allowed | None = None,
) -> Locality:
    """The node that a GPU hangs on.

    Args:
        pci: PCI address of the GPU this process uses.
        guard_node: the node the user expects, or None.
        guard_pci: the PCI address the user expects, or None.
        sysfs: root of the tree to read.
        limits: what the process may use (default: read from /proc).

    Raises:
        HostMemoryError: a guard disagrees, the node is unknown on a machine with several, or the process may
            not take memory from it.
    """
    pci = normalize_pci(pci)
    if guard_pci is not None and normalize_pci(guard_pci) != pci:
        raise HostMemoryError(
            f"VLLM_MOE_W2_MAPPED_PCI={guard_pci}, but the visible GPU is {pci}; "
            "correct the guard or CUDA_VISIBLE_DEVICES"
        )
    nodes = online_nodes(sysfs)
    node, reason = _gpu_node(pci, nodes, sysfs)
    if guard_node is not None and guard_node != node:
        raise HostMemoryError(
            f"VLLM_MOE_W2_MAPPED_NUMA_NODE={guard_node}, but GPU {pci} is on node {node} ({reason}); "
            "correct the guard or CUDA_VISIBLE_DEVICES"
        )
    _refuse_forbidden(node, allowed() if limits is None else limits, f"GPU {pci} is on it")
    return Locality(node, nodes, reason, node_cpus(node, sysfs), pci)


def cpu_locality(guard_node: int | None = None, sysfs: Path = SYSFS, limits: Allowed | None = None) -> Locality:
    """The node of a process that computes on CPUs.

    Args:
        guard_node: the node the user expects, or None; on several nodes it chooses among those allowed.
        sysfs: root of the tree to read.
        limits: what the process may use (default: read from /proc).

    Raises:
        HostMemoryError: the guard disagrees, or the process may run on several nodes and no guard chooses.
    """
    nodes = online_nodes(sysfs)
    limits = allowed() if limits is None else limits
    if guard_node is not None and guard_node not in nodes:
        raise HostMemoryError(
            f"VLLM_MOE_W2_MAPPED_NUMA_NODE={guard_node}: this machine has NUMA nodes {_join(nodes)}; name one of them"
        )
    home = tuple(node for node in nodes if limits.cpus & frozenset(node_cpus(node, sysfs)))
    if len(nodes) == 1:
        node, reason = nodes[0], "the only node"
    elif guard_node is not None:
        if home and guard_node not in home:
            raise HostMemoryError(
                f"VLLM_MOE_W2_MAPPED_NUMA_NODE={guard_node}, but this process may only run on node {_join(home)}; "
                "change the guard or the process's CPU affinity"
            )
        node, reason = guard_node, "named by VLLM_MOE_W2_MAPPED_NUMA_NODE"
    elif len(home) == 1:
        node, reason = home[0], "the only node this process may run on"
    else:
        raise HostMemoryError(
            f"this process may run on NUMA nodes {_join(home or nodes)}, so the node for mapped layers is unknown; "
            "set VLLM_MOE_W2_MAPPED_NUMA_NODE or start it under numactl --cpunodebind"
        )
    _refuse_forbidden(node, limits, "its CPUs compute")
    return Locality(node, nodes, reason, node_cpus(node, sysfs))


def parse_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format, ``0-3,8`` -> (0, 1, 2, 3, 8)."""
    numbers: list[int] = []
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def _gpu_node(pci: str, nodes: tuple[int, ...], sysfs: Path) -> tuple[int, str]:
    path = sysfs / "bus/pci/devices" / pci / "numa_node"
    if not path.parent.is_dir():
        unknown = "sysfs does not show the GPU"
    elif not path.is_file():
        unknown = "sysfs gives the GPU no numa_node"
    else:
        node = int(path.read_text())
        if node in nodes:
            return node, "numa_node of the GPU"
        unknown = f"numa_node of the GPU reads {node}"
    if len(nodes) == 1:
        return nodes[0], f"{unknown}; the machine has one node"
    raise HostMemoryError(
        f"GPU {pci}: {unknown} and this machine has NUMA nodes {_join(nodes)}, so the node for mapped layers is "
        "unknown; give the container /sys, update the firmware, or map no layers"
    )


def _refuse_forbidden(node: int, limits: Allowed, why: str) -> None:
    if limits.nodes and node not in limits.nodes:
        raise HostMemoryError(
            f"mapped layers belong on NUMA node {node} ({why}), but this process's cpuset allows memory from node "
            f"{_join(tuple(sorted(limits.nodes)))} only; widen cpuset.mems (docker run --cpuset-mems)"
        )


def _join(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes))
