from pathlib import Path

import pytest

from moet_w2.errors import HostMemoryError
from moet_w2.topology import cpu_locality, node_cpus, online_nodes, parse_list


def tree(root: Path, nodes: dict[int, str]) -> Path:
    base = root / "devices/system/node"
    base.mkdir(parents=True)
    (base / "online").write_text(",".join(map(str, nodes)) + "\n")
    for node, cpus in nodes.items():
        (base / f"node{node}").mkdir()
        (base / f"node{node}/cpulist").write_text(cpus + "\n")
    return root


def test_kernel_lists() -> None:
    assert parse_list("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_list("\n") == ()


def test_a_kernel_without_numa_is_node_zero(tmp_path: Path) -> None:
    assert online_nodes(tmp_path) == (0,)
    assert cpu_locality(None, tmp_path, frozenset({0})).node == 0


def test_one_socket(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {0: "0-7"})
    assert node_cpus(0, sysfs) == tuple(range(8))
    assert cpu_locality(None, sysfs, frozenset({3})).reason == "the only node"
    assert cpu_locality(0, sysfs, frozenset({3})).node == 0
    with pytest.raises(HostMemoryError, match="NUMA_NODE=1: this machine has NUMA nodes 0"):
        cpu_locality(1, sysfs, frozenset({3}))


def test_two_sockets_and_a_process_on_one(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {0: "0-3", 1: "4-7"})
    assert cpu_locality(None, sysfs, frozenset({5, 6})).node == 1
    with pytest.raises(HostMemoryError, match="NUMA_NODE=0, but this process may only run on node 1"):
        cpu_locality(0, sysfs, frozenset({5, 6}))


def test_two_sockets_and_a_process_on_both_needs_a_guard(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, {0: "0-3", 1: "4-7"})
    with pytest.raises(HostMemoryError, match="NUMA nodes 0, 1.*set VLLM_MOE_W2_MAPPED_NUMA_NODE"):
        cpu_locality(None, sysfs, frozenset({1, 5}))
    assert cpu_locality(1, sysfs, frozenset({1, 5})).node == 1
