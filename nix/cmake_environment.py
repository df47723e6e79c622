"""Gives vLLM's CMake files local copies of what they would fetch: cmake_environment.py TREE FOLDER FILE=SOURCE...

Copies each SOURCE below FOLDER, since some builds write into it, and prints a line `export VARIABLE=...` for each: the
variable that FILE of the TREE reads in place of its repository. Exit status: 0 done, 1 a repository that is not given,
or one given that nothing fetches.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts" / "lib"))

import native_source
from build_errors import FAILED, OK, BuildError

BELOW = {"triton": "python/triton_kernels/triton_kernels"}  # this variable names a folder of its repository


def exports(tree: Path, folder: Path, given: dict[str, Path]) -> list[str]:
    """The lines. Raises BuildError unless exactly the repositories that the tree fetches are given."""
    files = [tree / "CMakeLists.txt", *sorted(tree.glob("cmake/external_projects/*.cmake"))]
    sources = native_source.git_sources({str(file.relative_to(tree)): file.read_text() for file in files})
    if absent := [f"{source.name} ({source.file})" for source in sources if source.file not in given]:
        raise BuildError(f"vLLM fetches {', '.join(absent)}; pins.toml has no such table below cmake_sources")
    if idle := sorted(set(given) - {source.file for source in sources}):
        raise BuildError(f"pins.toml has sources for {', '.join(idle)}, which fetch nothing")
    lines = []
    for source in sources:
        copy = folder / source.name
        shutil.copytree(given[source.file], copy, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)
        lines.append(f"export {source.override}={shlex.quote(str(copy / BELOW.get(source.name, '.')))}")
    return lines


def main(tree: str, folder: str, *given: str) -> int:
    pairs = (pair.split("=", 1) for pair in given)
    try:
        lines = exports(Path(tree), Path(folder).resolve(), {name: Path(path) for name, path in pairs})
    except BuildError as error:
        print(f"vllm: error: {error}", file=sys.stderr)
        return FAILED
    print("\n".join(lines))
    return OK


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
