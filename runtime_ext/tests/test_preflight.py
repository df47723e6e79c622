import resource
from pathlib import Path

import pytest

from moet_w2 import preflight
from moet_w2.errors import HostMemoryError
from moet_w2.topology import Locality

NODE = Locality(1, (0, 1), "made up")
MIB = 1 << 20


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def machine(root: Path, **changes: str) -> Path:
    """A machine with 100 MiB everywhere; ``changes`` replace whole files, slashes written as __."""
    contents = {
        "proc/self/status": "VmLck:\t       0 kB\nCapEff:\t0000000000000000\n",
        "proc/meminfo": "MemTotal: 999999 kB\nMemAvailable: 102400 kB\n",
        "proc/self/cgroup": "0::/app/server\n",
        "sys/devices/system/node/node1/meminfo": "Node 1 MemFree: 92160 kB\nNode 1 Active(file): 10240 kB\n",
        "sys/fs/cgroup/app/memory.max": "max\n",
        "sys/fs/cgroup/app/memory.current": "0\n",
    }
    return files(root, contents | {name.replace("__", "/"): text for name, text in changes.items()})


@pytest.fixture(autouse=True)
def memlock(monkeypatch):
    def set_limit(nbytes: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (nbytes, nbytes))

    set_limit(resource.RLIM_INFINITY)
    return set_limit


def shortfall(root: Path, needed: int = 100 * MIB + 1) -> str:
    with pytest.raises(HostMemoryError) as caught:
        preflight.check(needed, NODE, root)
    message = str(caught.value)
    assert f"need {needed:,} bytes of locked host memory on NUMA node 1" in message and "\n" not in message
    return message


def test_enough_passes_to_the_byte(tmp_path: Path) -> None:
    preflight.check(100 * MIB, NODE, machine(tmp_path))


def test_a_machine_with_too_little_memory(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__meminfo="MemAvailable: 10 kB\n")
    assert "MemAvailable of the machine leaves 10,240: end other programs" in shortfall(root)


def test_a_node_with_too_little_memory(tmp_path: Path) -> None:
    root = machine(tmp_path, sys__devices__system__node__node1__meminfo="Node 1 MemFree: 1 kB\n")
    assert "NUMA node 1 leaves 1,024: free memory on that node" in shortfall(root)


def test_before_the_node_is_known_the_other_limits_count(tmp_path: Path, memlock) -> None:
    root = machine(tmp_path, sys__devices__system__node__node1__meminfo="Node 1 MemFree: 1 kB\n")
    preflight.check(100 * MIB, None, root)
    memlock(MIB)
    with pytest.raises(HostMemoryError, match="need 2,097,152 bytes of locked host memory; the memlock limit leaves"):
        preflight.check(2 * MIB, None, root)


def test_memlock_counts_what_is_locked_already(tmp_path: Path, memlock) -> None:
    memlock(100 * MIB)
    root = machine(tmp_path, proc__self__status="VmLck:\t 1024 kB\nCapEff:\t0\n")
    assert f"the memlock limit leaves {99 * MIB:,}: raise it (ulimit -l unlimited" in shortfall(root)


def test_a_privileged_process_has_no_memlock_limit(tmp_path: Path, memlock) -> None:
    memlock(4096)
    preflight.check(100 * MIB, NODE, machine(tmp_path, proc__self__status="CapEff:\t0000000000004000\n"))
    assert "memlock" in shortfall(machine(tmp_path, proc__self__status="CapEff:\t0000000000002000\n"))


def test_cgroup_v2_file_cache_does_not_count_as_used(tmp_path: Path) -> None:
    limit = {
        "sys/fs/cgroup/app/server/memory.max": f"{80 * MIB}\n",
        "sys/fs/cgroup/app/server/memory.current": f"{60 * MIB}\n",
        "sys/fs/cgroup/app/server/memory.stat": f"anon 1\ninactive_file {20 * MIB}\nactive_file {10 * MIB}\n",
    }
    root = files(machine(tmp_path), limit)
    preflight.check(50 * MIB, NODE, root)
    message = shortfall(root, 50 * MIB + 1)
    assert f"cgroup sys/fs/cgroup/app/server leaves {50 * MIB:,}: raise it (MemoryMax=" in message


def test_the_limit_of_an_outer_cgroup_counts(tmp_path: Path) -> None:
    limit = {
        "sys/fs/cgroup/app/memory.max": f"{MIB}\n",
        "sys/fs/cgroup/app/memory.stat": "inactive_file 0\n",
        "sys/fs/cgroup/app/server/memory.max": "max\n",
    }
    assert "cgroup sys/fs/cgroup/app leaves 1,048,576" in shortfall(files(machine(tmp_path), limit))


def test_cgroup_v1(tmp_path: Path) -> None:
    limit = {
        "proc/self/cgroup": "4:memory:/box\n3:cpuset:/\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{MIB}\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "4096\n",
        "sys/fs/cgroup/memory/box/memory.stat": "active_file 4096\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    }
    assert "cgroup sys/fs/cgroup/memory/box leaves 1,048,576" in shortfall(files(machine(tmp_path), limit))


def test_a_system_that_says_nothing_is_not_refused(tmp_path: Path) -> None:
    preflight.check(1 << 50, NODE, tmp_path)


def test_this_machine_can_be_read() -> None:
    found = preflight.limits(Locality(0, (0,), "the only node"))
    assert any(limit.source.startswith("MemAvailable") and limit.nbytes > 0 for limit in found)
