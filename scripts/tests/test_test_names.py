"""Modules of tests, scripts and benchmarks are imported by their bare names: one must not shadow another's."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_two_test_modules_share_a_name() -> None:
    assert len(modules("*/tests/*.py")) > 20
    assert shared(modules("*/tests/*.py", "scripts/lib/*.py", "bench/*.py", "gpu_tests/*.py", "patch/*.py")) == []


def test_a_shared_name_is_found() -> None:
    assert shared([Path("bench/kernels.py"), Path("scripts/lib/kernels.py"), Path("bench/facts.py")]) == ["kernels.py"]


def modules(*patterns: str) -> list[Path]:
    """What a bare name could mean; conftest modules are pytest's own affair, packages have their folder's name."""
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    return [path for path in found if path.name not in ("conftest.py", "__init__.py")]


def shared(paths: list[Path]) -> list[str]:
    return [name for name, count in Counter(path.name for path in paths).items() if count > 1]
