"""Our vLLM wheel in .native/dist/: built once for each set of inputs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import fetch
import pins as pin_table
import repack
import stamp
from build_errors import BuildError

PATCH_DIR = pin_table.ROOT / "patch"
TOOLS = ("tools.wheel", "tools.packaging")


@dataclass(frozen=True)
class Built:
    """A finished wheel and the digest of what it was made from."""

    path: Path
    digest: str


def inputs_digest(pins: pin_table.Pins, variant: str, patch_dir: Path = PATCH_DIR) -> str:
    """Hash of everything that decides the wheel's content."""
    keys = ("project", f"vllm.{variant}", *TOOLS)
    here = Path(__file__).resolve().parent
    parts = [(key, pins.get(key)) for key in keys]
    parts += [(path.name, path) for path in (patch_dir / pins.patch_name(), patch_dir / "FILES.txt")]
    parts += [(path.name, path) for path in (here / "repack.py", here / "ledger.py")]
    return stamp.digest([*parts, ("version", pins.our_version(variant))])


def build(pins: pin_table.Pins, variant: str, native: Path, patch_dir: Path = PATCH_DIR) -> Built:
    """Return the wheel of this variant, building it if the one at hand is of other inputs or damaged."""
    for path in (patch_dir / pins.patch_name(), patch_dir / "FILES.txt"):
        if not path.is_file():
            raise BuildError(f"{path} is missing; run `make patch`")
    digest = inputs_digest(pins, variant, patch_dir)
    dist = native / "dist"
    note = dist / f"vllm-{variant}.json"
    if note.is_file():
        known = json.loads(note.read_text())
        wheel = dist / known["wheel"]
        if known["digest"] == digest and wheel.is_file() and fetch.sha256_of(wheel) == known["sha256"]:
            return Built(wheel, digest)
    note.unlink(missing_ok=True)
    cache = fetch.cache_dir()
    print(f"build: making the {variant} wheel of vllm {pins.our_version(variant)}", file=sys.stderr)
    recipe = repack.Recipe(
        wheel=fetch.fetch(pins.artifact(f"vllm.{variant}"), cache),
        version=pins.our_version(variant),
        patch=patch_dir / pins.patch_name(),
        files=patch_dir / "FILES.txt",
        drop_requires=tuple(pins.get(f"vllm.{variant}.drop_requires")),
        tool_wheels=tuple(fetch.fetch(pins.artifact(tool), cache) for tool in TOOLS),
    )
    wheel = repack.repack(recipe, native / "work" / variant, dist)
    content = {"wheel": wheel.name, "digest": digest, "sha256": fetch.sha256_of(wheel)}
    temporary = note.with_suffix(".new")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(note)
    return Built(wheel, digest)
