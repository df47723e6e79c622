"""What a result file may hold: JSON Schema for every file's provenance and for the whole of a serving result."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

_HERE = Path(__file__).parent


def violations(document: Any) -> list[str]:
    """What is wrong with a result, worst first; empty for none.

    Args:
        document: a parsed result file; one whose ``benchmark`` is ``serving`` is held to the whole schema.
    """
    serving = isinstance(document, dict) and document.get("benchmark") == "serving"
    errors = _validator("serving" if serving else "provenance").iter_errors(document)
    return [_line(error) for error in sorted(errors, key=lambda error: [str(part) for part in error.absolute_path])]


def _line(error: Any) -> str:
    """The reason, with the place that it is about."""
    place = ".".join(map(str, error.absolute_path)) or "the file"
    return f"{place}: {error.message[:200]}"


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((_HERE / f"{name}.schema.json").read_text()))
