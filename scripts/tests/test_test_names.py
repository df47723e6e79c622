"""Test modules are imported by their bare names, so two of one name in different folders would shadow each other."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_two_test_modules_share_a_name() -> None:
    names = Counter(path.name for path in ROOT.glob("*/tests/*.py") if path.name not in ("conftest.py", "__init__.py"))
    assert len(names) > 20
    assert [name for name, count in names.items() if count > 1] == []
