"""The import check refuses an environment that imports the wrong thing, and says which."""

from __future__ import annotations

import json
import re
from pathlib import Path

import import_check
import pins
import pytest
from build_errors import BuildError

TABLE = pins.load()
CPU = {**import_check.expected(TABLE, "cpu", False), "gpus": 0}


def interpreter(folder: Path, output: str, status: int = 0) -> Path:
    """A stand-in for the environment's Python that prints `output`."""
    path = folder / "python"
    (folder / "output").write_text(output)
    path.write_text(f"#!/bin/sh\ncat {folder}/output\necho 'ImportError: no such thing' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_facts_of_the_pins_pass(tmp_path: Path) -> None:
    assert import_check.run(interpreter(tmp_path, json.dumps(CPU)), TABLE, "cpu") == CPU


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("distribution", "1.0"),
        ("vllm", "1.0"),
        ("torch", "1.0+cu130"),
        ("torch_git", "0" * 40),
        ("torch_cuda", "13.0"),
        ("platform", "cuda"),
        ("plugin", False),
    ],
)
def test_a_wrong_fact_is_named(tmp_path: Path, name: str, value: object) -> None:
    python = interpreter(tmp_path, json.dumps({**CPU, name: value}))
    with pytest.raises(BuildError, match=re.escape(f"has {name} {value!r}, not")):
        import_check.run(python, TABLE, "cpu")


def test_a_failing_import_gives_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot import vLLM: ImportError: no such thing"):
        import_check.run(interpreter(tmp_path, "", 1), TABLE, "cpu")


def test_without_a_gpu_the_cuda_build_chooses_no_platform() -> None:
    assert import_check.expected(TABLE, "cuda", False)["platform"] == ""
    assert import_check.expected(TABLE, "cuda", True)["platform"] == "cuda"
    assert "torch" not in import_check.expected(TABLE, "cuda", False)


def test_the_environment_of_make_setup_passes() -> None:
    facts = import_check.run(pins.ROOT / ".native" / "venv-cpu" / "bin" / "python", TABLE, "cpu")
    assert facts["platform"] == "cpu"
