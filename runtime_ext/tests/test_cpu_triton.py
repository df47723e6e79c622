"""The cpu Triton backend: how vLLM finds it, what it switches on, and that it keeps out of other builds."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

from moet_w2.cpu import triton_backend

PROBE = """
import json, sys
import vllm._custom_ops
import torch, triton
from vllm.triton_utils import HAS_TRITON
from moet_w2.cpu import capability
error = None
try:
    from moet_w2.plugin import register
    register()
except Exception as raised:
    error = f"{type(raised).__name__}: {raised}"
print(json.dumps({
    "triton": HAS_TRITON,
    "interpreted": bool(triton.knobs.runtime.interpret),
    "compiled": capability.has_op("flash_mla_with_kvcache_cpu"),
    "general": capability.has_op("silu_and_mul"),
    "avx512": torch.cpu._is_avx512_supported(),
    "aten": torch.backends.cpu.get_cpu_capability(),
    "error": error,
}))
"""


def probe(**variables: str) -> dict:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_MOE_W2")}
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, env=kept | variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_limit_reaches_the_choice_of_the_extension() -> None:
    found = probe(VLLM_MOE_W2_CPU_ISA="avx2")
    assert found == {
        "triton": True,
        "interpreted": True,
        "compiled": False,
        "general": True,
        "avx512": False,
        "aten": "AVX2",
        "error": None,
    }


def test_a_malformed_limit_is_the_plugins_error_not_tritons() -> None:
    found = probe(VLLM_MOE_W2_CPU_ISA="sse")
    assert found["triton"] and found["interpreted"]
    assert found["error"].startswith("ConfigError: VLLM_MOE_W2_CPU_ISA='sse' is not allowed")


@pytest.mark.parametrize(("version", "cpu"), [("1.2.3+moet1.cpu", True), ("1.2.3+moet1.cuda", False), (None, False)])
def test_only_cpu_builds_interpret(version: str | None, cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    before = knobs.runtime.interpret
    try:
        knobs.runtime.interpret = False
        importlib.reload(triton_backend)
        assert bool(knobs.runtime.interpret) is cpu
        assert triton_backend.is_cpu_build() is cpu
    finally:
        knobs.runtime.interpret = before
        monkeypatch.undo()
        importlib.reload(triton_backend)


def test_the_backend_is_listed_and_never_chosen() -> None:
    from triton.backends import backends

    backend = backends["cpu"]
    assert backend.compiler.__module__.startswith("moet_w2.cpu.triton_backend")
    assert backend.driver.is_active() is False
    assert backend.compiler.supports_target(None) is False
    with pytest.raises(RuntimeError, match="interprets kernels"):
        backend.driver().get_current_target()
