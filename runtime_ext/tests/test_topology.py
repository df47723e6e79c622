import os
from pathlib import Path

import pytest

from moet_w2.errors import HostMemoryError
from moet_w2.topology import (
    Allowed,
    allowed,
    cpu_locality,
    gpu_locality,
    node_cpus,
    normalize_pci,
    online_nodes,
    parse_list,
)

GPU = "0000:31:00.0"
ONE_SOCKET = {0: "0-7"}
TWO_SOCKETS = {0: "0-3", 1: "4-7"}


def tree(root: Path, nodes: dict[int, str], gpu_node: str | None = None, gpu: bool = True) -> Path:
    """A sysfs tree; ``gpu_node`` None leaves the numa_node file out, ``gpu`` False hides the whole device."""
    base = root / "devices/system/node"
    base.mkdir(parents=True)
    (base / "online").write_text(",".join(map(str, nodes)) + "\n")
    for node, cpus in nodes.items():
        (base / f"node{node}").mkdir()
        (base / f"node{node}/cpulist").write_text(cpus + "\n")
    if gpu:
        device = root / "bus/pci/devices" / GPU
        device.mkdir(parents=True)
        if gpu_node is not None:
            (device / "numa_node").write_text(gpu_node + "\n")
    return root


def on(cpus: set[int], nodes: set[int] = frozenset({0, 1})) -> Allowed:
    return Allowed(frozenset(cpus), frozenset(nodes))


def test_kernel_lists() -> None:
    assert parse_list("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_list("\n") == ()


@pytest.mark.parametrize("text", ["31:00.0", "0000:31:00.0", "00000000:31:00.0", " 0000:31:00.0\n"])
def test_pci_addresses_have_one_spelling(text: str) -> None:
    assert normalize_pci(text) == GPU
    assert normalize_pci("10000:E1:00.0") == "10000:e1:00.0"


@pytest.mark.parametrize("text", ["", "31", "31:00", "gpu0", "31:00.9", "0000:0000:31:00.0"])
def test_what_is_no_pci_address_is_refused(text: str) -> None:
    with pytest.raises(HostMemoryError, match="is not a PCI address"):
        normalize_pci(text)


def test_this_process_may_use_what_the_kernel_says(tmp_path: Path) -> None:
    assert allowed().cpus == os.sched_getaffinity(0)
    (tmp_path / "status").write_text("Name:\tx\nMems_allowed_list:\t1-2\n")
    assert allowed(tmp_path / "status").nodes == {1, 2}


# ---- GPU


@pytest.mark.parametrize(
    ("nodes", "gpu_node", "gpu", "node", "reason"),
    [
        (ONE_SOCKET, "0", True, 0, "numa_node of the GPU"),
        (TWO_SOCKETS, "0", True, 0, "numa_node of the GPU"),
        (TWO_SOCKETS, "1", True, 1, "numa_node of the GPU"),
        (ONE_SOCKET, "-1", True, 0, "reads -1; the machine has one node"),
        (ONE_SOCKET, None, True, 0, "no numa_node; the machine has one node"),
        (ONE_SOCKET, None, False, 0, "does not show the GPU; the machine has one node"),
    ],
)
def test_gpu_node(tmp_path: Path, nodes, gpu_node, gpu, node, reason) -> None:
    locality = gpu_locality("31:00.0", sysfs=tree(tmp_path, nodes, gpu_node, gpu), limits=on({0}))
    assert (locality.node, locality.pci, locality.nodes) == (node, GPU, tuple(nodes))
    assert locality.reason.endswith(reason)
    assert locality.cpus == parse_list(nodes[node])


@pytest.mark.parametrize(
    ("gpu_node", "gpu", "named"),
    [
        ("-1", True, "reads -1"),
        (None, True, "no numa_node"),
        (None, False, "does not show the GPU"),
        ("7", True, "reads 7"),
    ],
)
@pytest.mark.parametrize("guard", [None, 0])
def test_gpu_node_unknown_on_two_sockets_is_an_error_even_with_a_guard(tmp_path, gpu_node, gpu, named, guard) -> None:
    sysfs = tree(tmp_path, TWO_SOCKETS, gpu_node, gpu)
    with pytest.raises(HostMemoryError, match=rf"GPU {GPU}: .*{named} and this machine has NUMA nodes 0, 1"):
        gpu_locality(GPU, guard_node=guard, sysfs=sysfs, limits=on({0}))


def test_guards_that_agree_pass(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, TWO_SOCKETS, "1")
    assert gpu_locality(GPU, guard_node=1, guard_pci="31:00.0", sysfs=sysfs, limits=on({0})).node == 1


def test_guards_that_disagree_are_errors(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, TWO_SOCKETS, "1")
    with pytest.raises(HostMemoryError, match=f"MAPPED_NUMA_NODE=0, but GPU {GPU} is on node 1"):
        gpu_locality(GPU, guard_node=0, sysfs=sysfs, limits=on({0}))
    with pytest.raises(HostMemoryError, match=f"MAPPED_PCI=32:00.0, but the visible GPU is {GPU}"):
        gpu_locality(GPU, guard_pci="32:00.0", sysfs=sysfs, limits=on({0}))


def test_a_cpuset_without_the_gpus_node_is_an_error(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, TWO_SOCKETS, "1")
    with pytest.raises(HostMemoryError, match="NUMA node 1 .*allows memory from node 0 only.*cpuset"):
        gpu_locality(GPU, sysfs=sysfs, limits=on({0}, {0}))


# ---- CPU


def test_a_kernel_without_numa_is_node_zero(tmp_path: Path) -> None:
    assert online_nodes(tmp_path) == (0,)
    assert cpu_locality(sysfs=tmp_path, limits=on({0})).node == 0


def test_one_socket(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, ONE_SOCKET)
    assert node_cpus(0, sysfs) == tuple(range(8))
    assert cpu_locality(sysfs=sysfs, limits=on({3})).reason == "the only node"
    assert cpu_locality(0, sysfs, on({3})).node == 0
    with pytest.raises(HostMemoryError, match="NUMA_NODE=1: this machine has NUMA nodes 0"):
        cpu_locality(1, sysfs, on({3}))


def test_two_sockets_and_a_process_on_one(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, TWO_SOCKETS)
    assert cpu_locality(None, sysfs, on({5, 6})).node == 1
    with pytest.raises(HostMemoryError, match="NUMA_NODE=0, but this process may only run on node 1"):
        cpu_locality(0, sysfs, on({5, 6}))
    with pytest.raises(HostMemoryError, match="NUMA node 1 .*allows memory from node 0 only"):
        cpu_locality(None, sysfs, on({5, 6}, {0}))


def test_two_sockets_and_a_process_on_both_needs_a_guard(tmp_path: Path) -> None:
    sysfs = tree(tmp_path, TWO_SOCKETS)
    with pytest.raises(HostMemoryError, match="NUMA nodes 0, 1.*set VLLM_MOE_W2_MAPPED_NUMA_NODE"):
        cpu_locality(None, sysfs, on({1, 5}))
    assert cpu_locality(1, sysfs, on({1, 5})).node == 1
