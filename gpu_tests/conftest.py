"""Tests that need a CUDA GPU: marked ``gpu``, deselected and said to be where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "runtime_ext" / "tests")]

_deselected = 0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU; deselected where there is none")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        global _deselected
        _deselected = len(gpu)
        items[:] = [item for item in items if item not in set(gpu)]
        config.hook.pytest_deselected(items=gpu)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # this is one of several processes
    if output is not None:
        output["gpu_deselected"] = _deselected


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    global _deselected
    _deselected = max(_deselected, getattr(node, "workeroutput", {}).get("gpu_deselected", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _deselected:
        terminalreporter.write_line(f"gpu_tests: {_deselected} tests need a CUDA GPU; there is none, so none was run")
