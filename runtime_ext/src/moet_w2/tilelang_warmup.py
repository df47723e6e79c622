"""Compiles the warm-up keys of a TileLang kernel side by side.

Before a server is ready vLLM compiles what its TileLang kernels may be asked for, one key after the other. On a first
start of DeepSeek-V4-Flash that is 31 keys of the mHC pre kernel at 12 s each: 370 s on one core, of 16 that the host of
an H200 had. vLLM leaves the schedule of a batch to the kernel's class, ``compile_many``; ours calls vLLM's ``compile``
for every key, from threads.

Threads help because the time is spent outside Python: of a key's 12-15 s, 8-10 are TileLang's pass LayoutInference in
C++, which runs without the GIL (another thread ran for 97 % of it), and 2-3 are nvcc and g++. They may be used because
TileLang's own ``par_compile`` uses them, its builders and passes keep their state by thread, and its caches have locks.
vLLM's kernel is what cannot be shared: it notes the key that it compiles on itself, so each key has its own copy.
Should a key fail all the same, vLLM compiles the batch as it always did, and what fails then is vLLM's to tell.

Measured on 2 cores without a GPU (TileLang 0.1.12, target sm_90a): one key took 14 to 16 s, 4 keys in 2 threads 30 s;
12 keys in 8 threads cost a tenth more CPU time than one by one, and the process grew from 0.7 to 1.5 GB. Cache entries
have the same names, so a start with one schedule finds what another has left. The generated CUDA was the same for 10
keys of 12; TileLang places one barrier of the kernel without norm by chance, in fresh processes of one thread too.
Linking, half a second a key, is behind a lock of TileLang's.

On the host of an H200, 16 cores, 8 threads: 95 s for the 31 keys, where single ones had taken 14 to 18 s a moment
before, and 109 s for vLLM's whole JIT warm-up. One by one that had been 381 s on the host of another H200.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from .errors import UnsupportedError

logger = logging.getLogger("vllm.moet_w2")

_MOST_THREADS = 8
"""Beyond it the lock around linking and Python's share of a key leave little to gain; each thread costs memory."""


def attach(helper: Any, device: torch.device) -> None:
    """Have TileLang kernels compile their keys side by side. Where no GPU computes there are none, and nothing is done.

    Args:
        helper: the module ``vllm.model_executor.warmup.jit_warmup_tilelang_helper``.
        device: what computes.

    Raises:
        UnsupportedError: its ``VllmTileLangJitKernel`` has not the methods or the state that this relies on.
    """
    if device.type != "cuda":
        return
    kernel, quiet = getattr(helper, "VllmTileLangJitKernel", None), getattr(helper, "_quiet_tilelang_warmup_logs", None)
    for method, argument in (("compile_many", "compile_keys"), ("compile", "compile_key")):
        original = getattr(kernel, method, None)
        if original is None or list(inspect.signature(original).parameters) != ["self", argument]:
            raise UnsupportedError(f"VllmTileLangJitKernel.{method} is not the one of the pinned vLLM")
    if not hasattr(kernel, "_warming_key") or quiet is None:
        raise UnsupportedError("VllmTileLangJitKernel does not note its key as the pinned vLLM's does")

    one_by_one = kernel.compile_many  # type: ignore[union-attr]

    def compile_many(self: Any, compile_keys: Iterable[Any]) -> None:
        keys = list(compile_keys)
        try:
            # Each compile sets log levels and puts back what it found: around all of them, so that the first returns.
            with quiet():
                compile_all(self, keys)
        except Exception as error:
            why = "; ".join((repr(error), *getattr(error, "__notes__", ())))
            logger.warning("%s; compiling one key after the other", why)
            one_by_one(self, keys)

    kernel.compile_many = compile_many  # type: ignore[union-attr]


def compile_all(kernel: Any, keys: list[Any]) -> None:
    """Call ``kernel.compile`` once for every key, several at a time. What is compiled is stored where vLLM would.

    Args:
        kernel: a ``VllmTileLangJitKernel``; its copies share its caches.
        keys: its compile keys.

    Raises:
        Exception: of the keys that failed, what the first one in order raised, with a note that names the key. Keys
            that had not begun then are not compiled.
    """
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)  # the pool starts none that has no key
    logger.info("compiling %d keys of %s with up to %d threads", len(keys), type(kernel).__name__, threads)
    # A new thread's current device is the first one; TileLang asks the current device which architecture it has.
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # which set_device ignores
    pool = ThreadPoolExecutor(threads, "tilelang-warmup", torch.cuda.set_device, (device,))
    try:
        for key, compiled in [(key, pool.submit(copy.copy(kernel).compile, key)) for key in keys]:
            try:
                compiled.result()
            except Exception as error:
                error.add_note(f"in the warm-up of {type(kernel).__name__}, key {key!r}")
                raise
    finally:
        pool.shutdown(cancel_futures=True)
