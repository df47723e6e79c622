"""The extension as an installed package, without an installer: for a GPU host that has no network and no pip.

    export PYTHONPATH=$(python3 bench/gpu_site.py FOLDER):$PYTHONPATH

vLLM finds plugins by the entry points of installed distributions, so a source path alone is not enough. FOLDER gets
a link to the package and the metadata that an installer would write from runtime_ext/pyproject.toml.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = ROOT / "runtime_ext"


def make(folder: Path) -> Path:
    """Write the site folder, or write it again.

    Returns:
        its absolute path.
    """
    project = tomllib.loads((EXTENSION / "pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "moet_w2"
    link.unlink(missing_ok=True)
    link.symlink_to(EXTENSION / "src" / "moet_w2")
    info = folder / f"{name}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{entry} = {target}" for entry, target in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder.resolve()


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python3 bench/gpu_site.py FOLDER")
    print(make(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
