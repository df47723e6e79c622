"""Reader of pins.toml, the one table of pinned versions.

Use from Python: `load().get("vllm.version")`, `load().artifact("vllm.cpu")`.
Use from a shell: `python3 scripts/lib/pins.py get vllm.version`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_errors import FAILED, USAGE, BuildError

ROOT = Path(__file__).resolve().parents[2]
PINS_FILE = ROOT / "pins.toml"
VARIANTS = ("cpu", "cuda")

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Artifact:
    """One downloadable file: its name, where it lies and the hash it must have."""

    filename: str
    url: str
    sha256: str


@dataclass(frozen=True)
class Pins:
    """The parsed table. `table` is plain TOML data and is not to be changed."""

    table: dict[str, Any]
    source: Path

    def get(self, key: str) -> Any:
        """Value at a dotted key. Raises BuildError that names the first part that is missing."""
        value: Any = self.table
        for depth, part in enumerate(key.split(".")):
            if not isinstance(value, dict) or part not in value:
                known = ", ".join(sorted(value)) if isinstance(value, dict) else "nothing below a value"
                at = ".".join(key.split(".")[:depth]) or "the top"
                raise BuildError(f"{self.source.name}: no key {key!r}: {at} has {known}", USAGE)
            value = value[part]
        return value

    def artifact(self, key: str) -> Artifact:
        """The downloadable file at a key. Raises BuildError if a field is missing or malformed."""
        found = Artifact(self.get(f"{key}.filename"), self.get(f"{key}.url"), self.get(f"{key}.sha256"))
        if not _SHA256.match(found.sha256):
            raise BuildError(f"{self.source.name}: {key}.sha256 is {found.sha256!r}, not 64 hex digits")
        if "/" in found.filename or not found.filename:
            raise BuildError(f"{self.source.name}: {key}.filename is {found.filename!r}, not a plain name")
        return found

    def our_version(self, variant: str) -> str:
        """Version of our own vLLM distribution, e.g. `<vllm>+moet1.cpu`."""
        return f"{self.get('vllm.version')}+{self.get('project.revision')}.{variant}"

    def patch_name(self) -> str:
        """File name of the generated patch in patch/."""
        return f"vllm-moet-v{self.get('vllm.version')}.patch"

    def versions(self) -> Iterator[tuple[str, str]]:
        """(key, value) of every pinned version, revision or hash, for the leak check."""

        def walk(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
            if isinstance(value, dict):
                for name, inner in value.items():
                    yield from walk(f"{prefix}.{name}" if prefix else name, inner)
                return
            leaf = prefix.rsplit(".", 1)[-1]
            pinned = leaf in {"version", "sha256", "git", "revision", "compiler"}
            if pinned or prefix.startswith("packages."):
                yield prefix, str(value)

        yield from walk("", self.table)


def load(path: Path = PINS_FILE) -> Pins:
    """Parse the table. Raises BuildError if it is missing or not TOML."""
    try:
        with path.open("rb") as file:
            return Pins(tomllib.load(file), path)
    except FileNotFoundError:
        raise BuildError(f"{path} does not exist") from None
    except tomllib.TOMLDecodeError as error:
        raise BuildError(f"{path} is not valid TOML: {error}") from None


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] != "get":
        print("usage: pins.py get KEY", file=sys.stderr)
        return USAGE
    try:
        value = load().get(arguments[1])
    except BuildError as error:
        print(f"pins: error: {error}", file=sys.stderr)
        return error.code
    if isinstance(value, dict):
        print(f"pins: error: {arguments[1]} is a table; name one of: {', '.join(value)}", file=sys.stderr)
        return FAILED
    print(value)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
