"""What is compiled: the sources in kernels/src, for which architectures, with which flags, out of which files.

A cubin is bound to its inputs by a content hash over the source, every project header that it reaches, the flags,
the architecture and the compiler. Headers of the toolkit are bound by the compiler's version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import fetch
import stamp
from build_errors import BuildError

# -v makes ptxas report registers and spills. No line information and no debug information: they would hold paths.
FLAGS = ("-std=c++17", "-O3", "-Werror", "all-warnings", "-Xptxas", "-v")
# Sources that use instructions of one architecture, by the end of their name.
ONLY = {"_bs": "sm_120a"}

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """One cubin to be: a source, relative to the root of the tree, and an architecture."""

    source: Path
    arch: str

    @property
    def name(self) -> str:
        """Key in the manifest, and where the cubin lies below kernels/cubins."""
        return f"{self.arch}/{self.source.stem}"

    @property
    def flags(self) -> tuple[str, ...]:
        return (*FLAGS, f"-arch={self.arch}")


def jobs(root: Path, architectures: list[str]) -> list[Job]:
    """Every cubin that the tree asks for. Raises BuildError if there is no source."""
    sources = sorted(path.relative_to(root) for path in (root / "kernels" / "src").glob("*.cu"))
    if not sources:
        raise BuildError(f"{root / 'kernels' / 'src'} has no sources (*.cu)")
    made = []
    for source in sources:
        only = next((arch for suffix, arch in ONLY.items() if source.stem.endswith(suffix)), None)
        made += [Job(source, arch) for arch in architectures if only in (None, arch)]
    return made


def inputs(root: Path, source: Path) -> dict[str, str]:
    """The source and each header that it reaches by `#include "..."`, as path -> sha256, both in a fixed order.

    An include counts even where a condition would leave it out. Raises BuildError for one that is not there or
    lies outside the tree.
    """
    found: dict[str, str] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if str(path) in found:
            continue
        found[str(path)] = fetch.sha256_of(root / path)
        for name in _INCLUDE.findall((root / path).read_text()):
            header = ((root / path).parent / name).resolve()
            if not header.is_relative_to(root.resolve()) or not header.is_file():
                raise BuildError(f'{path} includes "{name}", which is no file of this tree beside it')
            waiting.append(header.relative_to(root.resolve()))
    return dict(sorted(found.items()))


def content(job: Job, inputs_of_source: dict[str, str], compiler: dict[str, str]) -> str:
    """Hash of everything that decides a cubin's bytes."""
    return stamp.digest([("inputs", inputs_of_source), ("flags", job.flags), ("compiler", compiler)])
