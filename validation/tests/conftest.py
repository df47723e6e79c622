"""What every test of this folder may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from server_support import REPOSITORY


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: starts a real vLLM server or engine (tens of seconds)")


@pytest.fixture(scope="session")
def demo_checkpoint() -> Path:
    """The checkpoint that the demo recipe serves, or the one that MODEL_PATH names instead."""
    return Path(os.environ.get("MODEL_PATH") or REPOSITORY / "demo" / "checkpoint")
