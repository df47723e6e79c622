"""Paths and helpers that the demo's tests share; tests run from the repository root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

CHECKPOINT = ROOT / "demo" / "checkpoint"


@pytest.fixture(scope="session")
def checkpoint_dir() -> Path:
    """The committed checkpoint."""
    return CHECKPOINT
