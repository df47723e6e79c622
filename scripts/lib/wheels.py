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
    """A finished wheel and its sha256."""

    path: Path
    sha256: str


def inputs_digest(pins: pin_table.Pins, variant: str, patch_dir: Path = PATCH_DIR) -> str:
    """Hash of everything that decides the wheel's content."""
    keys = ("project", f"vllm.{variant}", *TOOLS)
    here = Path(__file__).resolve().parent
    parts = [(key, pins.get(key)) for key in keys]
    parts += [(path.name, path) for path in (patch_dir / pins.patch_name(), patch_dir / "FILES.txt")]
    parts += [(path.name, path) for path in (here / "repack.py", here / "ledger.py")]
    return stamp.digest([*parts, ("version", pins.our_version(variant))])


def current(pins: pin_table.Pins, variant: str, native: Path, patch_dir: Path = PATCH_DIR) -> Built | None:
    """The wheel at hand if it is whole and of these inputs. Reads all of it."""
    note = native / "dist" / f"vllm-{variant}.json"
    try:
        known = json.loads(note.read_text())
        wheel, inputs, sha256 = (known[name] for name in ("wheel", "inputs", "sha256"))
    except (FileNotFoundError, ValueError, KeyError):
        return None
    path = note.with_name(wheel)
    if inputs != inputs_digest(pins, variant, patch_dir) or not path.is_file():
        return None
    return Built(path, sha256) if fetch.sha256_of(path) == sha256 else None


def build(pins: pin_table.Pins, variant: str, native: Path, patch_dir: Path = PATCH_DIR) -> Built:
    """Return the wheel of this variant, building it if the one at hand is of other inputs or damaged."""
    for path in (patch_dir / pins.patch_name(), patch_dir / "FILES.txt"):
        if not path.is_file():
            raise BuildError(f"{path} is missing; run `make patch`")
    if found := current(pins, variant, native, patch_dir):
        return found
    dist = native / "dist"
    note = dist / f"vllm-{variant}.json"
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
    built = Built(wheel, fetch.sha256_of(wheel))
    inputs = inputs_digest(pins, variant, patch_dir)
    temporary = note.with_suffix(".new")
    content = {"wheel": wheel.name, "inputs": inputs, "sha256": built.sha256}
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(note)
    return built
