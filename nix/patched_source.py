"""Writes the patched source of vLLM: patched_source.py ARCHIVE FOLDER. Exit status: 0 done, 1 failed, 2 usage."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "lib"))

import pins as pin_table
import repack
from archive import unpack
from build_errors import OK, USAGE, BuildError

ROOT = pin_table.ROOT


def write(archive: Path, folder: Path) -> None:
    """Unpack and patch. The folder appears whole or not at all; raises BuildError if the patch does not apply."""
    pins = pin_table.load(ROOT / "pins.toml")
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        unpack(archive, Path(name), pins.get("vllm.sdist.root") + "/")
        tree = Path(name) / pins.get("vllm.sdist.root")
        repack.apply_patch(tree, ROOT / "patch" / pins.patch_name(), ROOT / "patch" / "FILES.txt")
        tree.rename(folder)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: patched_source.py ARCHIVE FOLDER", file=sys.stderr)
        return USAGE
    try:
        write(Path(arguments[0]), Path(arguments[1]))
    except BuildError as error:
        print(f"source: error: {error}", file=sys.stderr)
        return error.code
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
