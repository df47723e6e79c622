"""Digests of files and of JSON values, always sha256 in hex."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def canonical(value: Any) -> bytes:
    """A JSON value as bytes that depend on the value alone: members sorted, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def of_json(value: Any) -> str:
    """Digest of a JSON value."""
    return hashlib.sha256(canonical(value)).hexdigest()


def of_text(text: str) -> str:
    """Digest of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def of_file(path: Path) -> str:
    """Digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
