"""TileLang's warm-up keys side by side: each once, by vLLM's own compile, and a failure that says whose it is."""

import inspect
import logging
import os
import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.warmup import jit_warmup_tilelang_helper as helper
from vllm.model_executor.warmup.jit_warmup import VllmJitKernel

from moet_w2 import runtime, tilelang_warmup
from moet_w2.errors import UnsupportedError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SECONDS = 20  # how long a test waits for what comes at once if it comes at all


@pytest.fixture(autouse=True)
def cores(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))


@pytest.fixture
def attached(monkeypatch) -> type:
    """vLLM's class with our hook, which the test takes back."""
    monkeypatch.setattr(helper.VllmTileLangJitKernel, "compile_many", VllmJitKernel.compile_many, raising=False)
    tilelang_warmup.attach(helper, CUDA)
    return helper.VllmTileLangJitKernel


class Compiler:
    """In TileLang's place: what it is asked for, and what happens then."""

    def __init__(self, event=lambda key: None) -> None:
        self.event = event
        self.asked: list[int] = []
        self._kernel_cache: dict[tuple[int], str] = {}
        self.func = SimpleNamespace(parse_args=lambda key: ((key,), {}))

    def compile(self, key: int) -> str:
        self.asked.append(key)
        self.event(key)
        return f"code of {key}"


def kernel(compiler: Compiler, noted=lambda key: None) -> Any:
    """One of vLLM's kernels; ``noted`` is called when the instance has noted its key and not yet used it."""

    class Fake(helper.VllmTileLangJitKernel):
        CompileKey = int

        def get_warmup_keys(self) -> list[int]:
            return []

        def warmup_inputs(self, compile_key: int) -> dict[str, int]:
            noted(compile_key)
            return {"size": compile_key}

        @helper.kernel_launcher
        def __call__(self, size: int) -> helper.TileLangLaunchSpec:
            return (size,), (size,)  # vLLM's launcher refuses a size that is not the key noted on the instance

        @staticmethod
        def kernel(key: int) -> Compiler:
            return compiler

    return Fake()


def test_every_key_is_compiled_once_and_stored(attached) -> None:
    compiler = Compiler()
    one = kernel(compiler)
    one.compile_many(dict.fromkeys(range(31)))
    assert sorted(compiler.asked) == list(range(31))
    assert compiler._kernel_cache == {(key,): f"code of {key}" for key in range(31)}
    assert one._warming_key is None


def test_no_key_replaces_another_that_is_compiled(attached) -> None:
    met, compiler = threading.Barrier(8), Compiler()
    kernel(compiler, lambda key: met.wait(SECONDS)).compile_many(range(8))
    assert sorted(compiler.asked) == list(range(8))


def test_the_order_in_which_keys_end_changes_nothing(attached) -> None:
    """The first key ends last."""
    others = threading.Semaphore(0)

    def event(key: int) -> None:
        if key:
            others.release()
        else:
            assert all(others.acquire(timeout=SECONDS) for _ in range(19))

    compiler = Compiler(event)
    kernel(compiler).compile_many(range(20))
    assert compiler._kernel_cache == {(key,): f"code of {key}" for key in range(20)}


def test_keys_are_compiled_at_the_same_time_and_at_most_eight(attached) -> None:
    met = threading.Barrier(8)
    running = most = 0
    lock = threading.Lock()

    def event(key: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        met.wait(SECONDS)  # all eight, or it breaks
        time.sleep(0.1)  # time for a ninth
        with lock:
            running -= 1

    kernel(Compiler(event)).compile_many(range(16))
    assert most == 8


def test_one_core_compiles_one_key_at_a_time(attached, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5})
    names = set()
    compiler = Compiler(lambda key: (names.add(threading.current_thread().name), time.sleep(0.05)))
    kernel(compiler).compile_many(range(4))
    assert compiler.asked == list(range(4))
    assert len(names) == 1


def test_no_keys_are_no_work(attached) -> None:
    kernel(Compiler()).compile_many(())


@pytest.mark.parametrize("allowed", [1, 16])
def test_a_key_that_vllm_cannot_compile_either_ends_the_start_with_vllms_error(
    attached, monkeypatch, caplog, allowed
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(allowed)))

    def event(key: int) -> None:
        if key in (3, 5):
            raise RuntimeError(f"nvcc said no to {key}")

    compiler = Compiler(event)
    with pytest.raises(RuntimeError, match="^nvcc said no to 3$"):
        kernel(compiler).compile_many(range(8))
    assert (
        "RuntimeError('nvcc said no to 3'); in the warm-up of Fake, key 3; compiling one key after the other"
        in caplog.messages
    )
    assert (3,) not in compiler._kernel_cache


def test_what_fails_in_threads_alone_is_compiled_as_vllm_does(attached) -> None:
    def event(key: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("not from here")

    compiler = Compiler(event)
    kernel(compiler).compile_many(iter(range(8)))
    assert compiler._kernel_cache == {(key,): f"code of {key}" for key in range(8)}


def test_threads_that_cannot_begin_are_no_end(attached, monkeypatch) -> None:
    def refuse(device: int) -> None:
        raise RuntimeError(f"no device {device}")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    compiler = Compiler()
    kernel(compiler).compile_many(range(4))
    assert compiler.asked == list(range(4))


def test_after_a_failure_no_key_is_begun(attached) -> None:
    failed = threading.Event()

    def event(key: int) -> None:
        if key == 0:
            failed.set()
            raise RuntimeError("no")
        failed.wait(SECONDS)
        time.sleep(0.2)  # time for the first failure to be seen

    compiler = Compiler(event)
    with pytest.raises(RuntimeError):
        kernel(compiler).compile_many(range(1000))
    assert len(compiler.asked) < 100


def test_log_levels_are_as_before(attached) -> None:
    """vLLM silences TileLang's loggers around each compile and puts back what it found, also what another one set."""
    logger, met = logging.getLogger("tilelang.jit.kernel"), threading.Barrier(8)
    before = logger.level
    levels = []
    try:
        logger.setLevel(logging.WARNING)
        kernel(Compiler(lambda key: (met.wait(SECONDS), levels.append(logger.level)))).compile_many(range(8))
        assert levels == [logging.ERROR] * 8
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(before)


def test_other_kernels_are_left_alone(attached) -> None:
    class Other(VllmJitKernel):
        def get_warmup_keys(self) -> list[int]:
            return []

        def compile(self, compile_key: int) -> None:
            self.seen = [*getattr(self, "seen", []), (compile_key, threading.current_thread())]

    other = Other()
    other.compile_many(range(3))
    assert other.seen == [(key, threading.current_thread()) for key in range(3)]


def test_on_a_cpu_nothing_is_hooked() -> None:
    before = helper.VllmTileLangJitKernel.compile_many
    tilelang_warmup.attach(helper, CPU)
    tilelang_warmup.attach(SimpleNamespace(), CPU)
    assert helper.VllmTileLangJitKernel.compile_many is before


def test_a_worker_hooks_it() -> None:
    assert "tilelang_warmup.attach(jit_warmup_tilelang_helper, device)" in inspect.getsource(runtime.get)


def pinned() -> SimpleNamespace:
    class Kernel:
        _warming_key = None

        def compile(self, compile_key): ...

        def compile_many(self, compile_keys): ...

    return SimpleNamespace(VllmTileLangJitKernel=Kernel, _quiet_tilelang_warmup_logs=contextmanager(lambda: iter([0])))


def test_another_vllm_is_refused() -> None:
    tilelang_warmup.attach(pinned(), CUDA)
    for name in ("compile", "compile_many"):
        other = pinned()
        delattr(other.VllmTileLangJitKernel, name)
        with pytest.raises(UnsupportedError, match=rf"^VllmTileLangJitKernel\.{name} is not the one of the pinned"):
            tilelang_warmup.attach(other, CUDA)
        setattr(other.VllmTileLangJitKernel, name, lambda self, key, more: None)
        with pytest.raises(UnsupportedError, match=rf"^VllmTileLangJitKernel\.{name} is not the one of the pinned"):
            tilelang_warmup.attach(other, CUDA)
    other = pinned()
    del other.VllmTileLangJitKernel._warming_key
    with pytest.raises(UnsupportedError, match="does not note its key"):
        tilelang_warmup.attach(other, CUDA)
    for name in vars(pinned()):
        other = pinned()
        delattr(other, name)
        with pytest.raises(UnsupportedError, match="pinned vLLM"):
            tilelang_warmup.attach(other, CUDA)


def test_vllms_kernels_keep_nothing_on_themselves_but_the_key() -> None:
    """What a copy for each key protects; and no kernel of the pinned vLLM schedules its batch itself."""
    from vllm.model_executor.warmup import jit_warmup

    assert "kernel.compile_many(compile_keys)" in inspect.getsource(jit_warmup.JitWarmupRegistry.warmup)
    mhc = Path(jit_warmup.__file__).parent.parent / "kernels/mhc/tilelang_kernels.py"
    kernels = re.split(r"^class ", mhc.read_text(), flags=re.MULTILINE)[1:]
    assert [kernel for kernel in kernels if kernel.startswith("MhcPreBigFuseTileLangKernel(")]
    for source in (inspect.getsource(helper.VllmTileLangJitKernel), *kernels):
        assert set(re.findall(r"self\.\w+ = ", source)) <= {"self._warming_key = "}
        assert "def compile" not in source or "_warming_key" in source
