import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from moet_w2 import host_memory, linux
from moet_w2.errors import HostMemoryError
from moet_w2.host_memory import HostAllocation, open_allocations
from moet_w2.linux import HUGE_PAGE, PAGE
from moet_w2.topology import Locality

ONE_NODE = Locality(0, (0,), "the only node")
TWO_NODES = Locality(0, (0, 1), "made up")


def locked_bytes(pid: int | str = "self") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmLck in /proc/self/status")


class FakeRegistrar:
    """Records what is registered; can be made to fail."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.registered: dict[int, int] = {}
        self.failure = failure

    def register(self, address: int, nbytes: int) -> int:
        if self.failure:
            raise self.failure
        self.registered[address] = nbytes
        return address

    def unregister(self, address: int) -> None:
        self.locked_at_unregister = locked_bytes()
        del self.registered[address]


def test_locked_exactly_zeroed_and_given_back() -> None:
    before = locked_bytes()
    nbytes = 3 * PAGE + 100
    allocation = HostAllocation("layer 2", nbytes, ONE_NODE)
    tensor = allocation.tensor()
    assert (tensor.numel(), tensor.data_ptr(), tensor.data_ptr() % PAGE) == (nbytes, allocation.address, 0)
    assert not tensor.any()
    assert locked_bytes() - before == allocation.mapped_bytes == 4 * PAGE
    tensor.fill_(7)
    assert allocation.tensor().eq(7).all()  # the same bytes, not a copy
    assert sum(allocation.pages.by_node.values()) == 4 or allocation.pages.note
    assert allocation in open_allocations()
    allocation.close()
    assert locked_bytes() == before and allocation not in open_allocations()


def test_a_large_allocation_is_exact_and_aligned() -> None:
    before, nbytes = locked_bytes(), 5 * HUGE_PAGE + PAGE
    allocation = HostAllocation("layer 2", nbytes, ONE_NODE)
    assert allocation.address % HUGE_PAGE == 0
    assert locked_bytes() - before == nbytes  # no rounding to a power of two
    assert allocation.pages.huge_bytes in range(0, 5 * HUGE_PAGE + 1, HUGE_PAGE)
    assert sum(allocation.pages.by_node.values()) * PAGE == nbytes or allocation.pages.note
    allocation.close()
    assert locked_bytes() == before


def test_it_outlives_the_objects_that_made_it() -> None:
    allocation = HostAllocation("layer 2", PAGE, ONE_NODE)
    tensor = allocation.tensor()
    tensor.fill_(9)
    address = allocation.address
    del allocation
    gc.collect()
    assert tensor.eq(9).all()
    kept = {each.address: each for each in open_allocations()}
    kept[address].close()


def test_closing_twice_is_harmless_and_a_closed_one_gives_no_tensor() -> None:
    allocation = HostAllocation("layer 2", PAGE, ONE_NODE)
    allocation.close()
    allocation.close()
    with pytest.raises(HostMemoryError, match="layer 2: its host memory is closed"):
        allocation.tensor()


def test_registration_comes_last_and_goes_first() -> None:
    registrar = FakeRegistrar()
    allocation = HostAllocation("layer 2", PAGE + 1, ONE_NODE, registrar)
    assert registrar.registered == {allocation.address: 2 * PAGE}
    assert allocation.device_address == allocation.address
    locked = locked_bytes()
    allocation.close()
    assert registrar.registered == {}
    assert registrar.locked_at_unregister == locked > locked_bytes()  # the device is told first


STEPS = {
    "reserve": (linux, "map fewer layers"),
    "advise_huge": (linux, None),
    "bind": (linux, "mbind.*seccomp"),
    "zero": (linux, None),
    "lock": (linux, r"memlock limit: .*ulimit -l unlimited"),
    "page_nodes": (linux, "move_pages.*seccomp"),
    "register": (None, "cudaHostRegister"),
}


@pytest.mark.parametrize("step", STEPS)
def test_each_step_that_fails_undoes_the_ones_before(monkeypatch, step: str) -> None:
    HostAllocation("warm-up", PAGE, ONE_NODE).close()
    monkeypatch.setattr(linux, "bind", lambda *args: None)
    registrar = FakeRegistrar()
    module, remedy = STEPS[step]
    if module is None:
        registrar.failure = HostMemoryError("cudaHostRegister failed: made up")
    else:

        def fail(*args):
            raise OSError(errno.ENOENT, "made up")

        monkeypatch.setattr(module, step, fail)
    mapped: list[tuple[int, int]] = []
    reserve, release = linux.reserve, linux.release
    if step != "reserve":
        monkeypatch.setattr(linux, "reserve", lambda n: mapped.append((reserve(n), n)) or mapped[-1][0])
    released: list[int] = []
    monkeypatch.setattr(linux, "release", lambda a, n: released.append(n) or release(a, n))
    before = (locked_bytes(), len(open_allocations()), os.sched_getaffinity(0))
    expected = HostMemoryError if remedy else OSError
    with pytest.raises(expected, match=remedy or "made up") as caught:
        HostAllocation("layer 9", 2 * HUGE_PAGE, TWO_NODES, registrar)
    if remedy and module:
        assert "layer 9: 4,194,304 bytes of host memory on NUMA node 0" in str(caught.value)
    assert (locked_bytes(), len(open_allocations()), os.sched_getaffinity(0)) == before
    assert sum(released) == sum(n for _, n in mapped)
    assert registrar.registered == {}


def test_threads_that_touch_leave_the_callers_affinity_alone() -> None:
    cpus = os.sched_getaffinity(0)
    local = Locality(0, (0,), "the only node", cpus=(min(cpus),))
    HostAllocation("layer 2", PAGE, local).close()
    assert os.sched_getaffinity(0) == cpus


def test_a_kernel_without_huge_pages_is_fine(monkeypatch) -> None:
    def refuse(*args):
        raise OSError(errno.EINVAL, "no huge pages")

    monkeypatch.setattr(linux, "advise_huge", refuse)
    allocation = HostAllocation("layer 1", HUGE_PAGE, ONE_NODE)
    allocation.close()


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_a_kernel_that_will_not_say_is_noted_on_one_node_and_refused_on_two(monkeypatch, code: int) -> None:
    def refuse(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(linux, "page_nodes", refuse)
    allocation = HostAllocation("layer 1", PAGE, ONE_NODE)
    assert allocation.pages.by_node == {} and "one node" in allocation.pages.note
    allocation.close()
    monkeypatch.setattr(linux, "bind", lambda *args: None)
    with pytest.raises(HostMemoryError, match="could not be verified"):
        HostAllocation("layer 1", PAGE, TWO_NODES)


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({0: 4}, "4 on node 0"),
        ({0: 1, 1: 3}, "1 on node 0, 3 on node 1"),
        ({-14: 2, 1: 2}, "2 unknown .*, 2 on node 1"),
    ],
)
def test_pages_on_a_foreign_node_are_an_error(monkeypatch, found, named) -> None:
    locked = locked_bytes()
    monkeypatch.setattr(linux, "bind", lambda *args: None)
    monkeypatch.setattr(linux, "page_nodes", lambda *args: found)
    foreign = Locality(1, (0, 1), "made up")
    with pytest.raises(HostMemoryError, match=f"belong on NUMA node 1, pages lie: {named}"):
        HostAllocation("layer 3", 4 * PAGE, foreign)
    assert locked_bytes() == locked


def test_binding_to_a_node_that_is_not_there_fails_as_the_kernel_says() -> None:
    address = linux.reserve(PAGE)
    try:
        with pytest.raises(OSError) as caught:
            linux.bind(address, PAGE, 900)
        assert caught.value.errno in (errno.EINVAL, errno.EPERM, errno.ENOSYS)
    finally:
        linux.release(address, PAGE)


def test_a_memlock_limit_is_met_with_the_remedy() -> None:
    """In a process of its own, under a real limit."""
    code = """
        import ctypes, resource
        from moet_w2.host_memory import HostAllocation
        from moet_w2.errors import HostMemoryError
        from moet_w2.topology import Locality
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP CAP_IPC_LOCK; harmless without privilege
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        try:
            import os
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            HostAllocation("layer 7", 1 << 20, Locality(0, (0,), "the only node"))
        except HostMemoryError as error:
            print(error)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "layer 7: 1,048,576 bytes" in out.stdout and "memlock limit: 65,536 bytes" in out.stdout


@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_a_process_that_ends_leaves_nothing_and_the_next_starts_at_once(ending: str) -> None:
    code = """
        import sys, time
        from moet_w2.host_memory import HostAllocation
        from moet_w2.topology import Locality
        HostAllocation("layer 1", 64 << 20, Locality(0, (0,), "the only node"))
        print("ready", flush=True)
        sys.stdin.readline()
    """
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "ready\n"
            assert locked_bytes(process.pid) >= 64 << 20
            if ending == "kill":
                process.send_signal(signal.SIGKILL)
            process.stdin.close()
            process.wait(timeout=30)
            assert process.returncode == (0 if ending == "exit" else -signal.SIGKILL)


def test_a_multiprocessing_child_closes_on_its_way_out() -> None:
    """vLLM's workers are such children."""
    code = """
        import multiprocessing
        from moet_w2 import host_memory
        from moet_w2.topology import Locality

        class Told:
            def register(self, address, nbytes):
                return address
            def unregister(self, address):
                print("unregistered", flush=True)

        def work():
            allocate()

        def allocate():
            return host_memory.HostAllocation("layer 1", 4096, Locality(0, (0,), "the only node"), Told())

        if __name__ == "__main__":
            allocate()
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join()
            print("child ended", flush=True)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == ["unregistered", "child ended", "unregistered"], out.stderr


def test_closing_all_goes_backwards(monkeypatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(host_memory, "_open_allocations", {})
    for name in ("first", "second"):
        allocation = HostAllocation(name, PAGE, ONE_NODE)
        close = allocation.close
        allocation.close = lambda name=name, close=close: (closed.append(name), close())
    host_memory.close_all()
    assert closed == ["second", "first"] and open_allocations() == ()
