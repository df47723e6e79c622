"""Makes our vLLM wheel from a pinned one: unpack, patch, rename, pack.

The pinned wheel's compiled code is kept byte for byte. What changes: the files that the generated patch
names (each checked against FILES.txt before and after), the distribution's name and version, the
requirements that pins.toml drops, and RECORD, which `wheel pack` writes anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

import ledger
from build_errors import BuildError
from fetch import sha256_of

DISTRIBUTION = "vllm"
ZIP_EPOCH = "315532800"  # 1980-01-01, the first date a zip can hold: equal inputs give an equal wheel


@dataclass(frozen=True)
class Recipe:
    """Inputs of one repacked wheel. `drop_requires` are distribution names, normalised or not."""

    wheel: Path
    version: str
    patch: Path
    files: Path  # FILES.txt that belongs to the patch
    drop_requires: tuple[str, ...]
    tool_wheels: tuple[Path, ...]  # wheels of `wheel` and what it needs, put on its import path


def repack(recipe: Recipe, work: Path, out: Path) -> Path:
    """Build the wheel in `work` (emptied first) and move it to `out`. Returns its path.

    Raises BuildError if the patch does not apply cleanly, a file is not the one the patch was made
    for, or the wheel is not laid out as expected.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _wheel_tool(recipe, "unpack", "--dest", str(work), str(recipe.wheel))
    (tree,) = [path for path in work.iterdir() if path.is_dir()]
    apply_patch(tree, recipe.patch, recipe.files)
    _rename(tree, recipe)
    packed = work / "packed"
    packed.mkdir()
    _wheel_tool(recipe, "pack", "--dest-dir", str(packed), str(tree))
    (wheel,) = packed.iterdir()
    out.mkdir(parents=True, exist_ok=True)
    target = out / wheel.name
    os.replace(wheel, target)
    shutil.rmtree(work)
    return target


def apply_patch(tree: Path, patch: Path, files: Path) -> None:
    """Apply the generated patch to a tree that holds vllm/, with no fuzz and no offset tolerated.

    Each file is compared with FILES.txt before (so a patch for other sources never half-applies) and
    after. Raises BuildError that names the file and the series patches that touch it.
    """
    entries = ledger.read_files(files)
    for entry in entries:
        _require(tree, entry, entry.before, "before", patch)
    # Outside any repository, git reads the patch's paths from the current folder. The ceiling makes it so
    # although the work folder lies inside ours.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    environment.pop("GIT_DIR", None)
    if entries:
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", str(patch.resolve())],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BuildError(f"{patch.name} does not apply to {tree.name}: {done.stderr.strip()}")
    for entry in entries:
        _require(tree, entry, entry.after, "after", patch)


def _require(tree: Path, entry: ledger.Entry, expected: str, when: str, patch: Path) -> None:
    path = tree / entry.path
    actual = sha256_of(path) if path.is_file() else ledger.ABSENT
    if actual != expected:
        raise BuildError(
            f"{patch.name} does not apply cleanly to {tree.name}: {entry.path} (patched by "
            f"patch/series/{', '.join(entry.series)}) has sha256 {actual} {when} patching, "
            f"patch/FILES.txt says {expected}"
        )


def _wheel_tool(recipe: Recipe, *arguments: str) -> None:
    path = os.pathsep.join(map(str, recipe.tool_wheels))
    environment = {**os.environ, "PYTHONPATH": path, "SOURCE_DATE_EPOCH": ZIP_EPOCH}
    done = subprocess.run([sys.executable, "-m", "wheel", *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        tail = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise BuildError(f"wheel {arguments[0]} failed on {recipe.wheel.name}: {tail[0]}")


def _rename(tree: Path, recipe: Recipe) -> None:
    (info,) = [path for path in tree.iterdir() if path.name.endswith(".dist-info")]
    metadata = info / "METADATA"
    metadata.write_text(
        edit_metadata(metadata.read_text(encoding="utf-8"), recipe.version, recipe.drop_requires),
        encoding="utf-8",
    )
    wheel_file = info / "WHEEL"
    wheel_file.write_text(_with_tag(wheel_file.read_text(encoding="utf-8"), recipe.wheel), encoding="utf-8")
    (info / "RECORD").unlink()
    info.rename(tree / f"{DISTRIBUTION}-{recipe.version}.dist-info")


def edit_metadata(text: str, version: str, drop_requires: tuple[str, ...]) -> str:
    """METADATA with our name and version and without the dropped requirements.

    A requirement that is to be dropped but is not there raises BuildError: the list is stale.
    """
    head, separator, body = text.partition("\n\n")
    dropped = {normal(name) for name in drop_requires}
    seen: set[str] = set()
    lines = []
    for line in head.split("\n"):
        key, _, value = line.partition(": ")
        if key == "Name":
            line = f"Name: {DISTRIBUTION}"
        elif key == "Version":
            line = f"Version: {version}"
        elif key == "Requires-Dist":
            name = normal(re.split(r"[^A-Za-z0-9._-]", value, maxsplit=1)[0])
            if name in dropped and "extra ==" not in value:
                seen.add(name)
                continue
        lines.append(line)
    if stale := dropped - seen:
        raise BuildError(f"pins.toml drops requirements that the wheel does not have: {', '.join(sorted(stale))}")
    return "\n".join(lines) + separator + body


def requirements(metadata: str) -> list[str]:
    """The Requires-Dist values of a METADATA text that belong to no extra."""
    found = HeaderParser().parsestr(metadata).get_all("Requires-Dist") or []
    return [value for value in found if "extra ==" not in value]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _with_tag(text: str, wheel: Path) -> str:
    """WHEEL with the tag of the published file name. The one inside names the build machine instead
    (one Python, no manylinux), and `wheel pack` would name our wheel after it."""
    python, abi, platforms = wheel.name.removesuffix(".whl").split("-")[-3:]
    kept = [line for line in text.splitlines() if line and not line.startswith("Tag:")]
    tags = [f"Tag: {python}-{abi}-{platform}" for platform in platforms.split(".")]
    return "\n".join([*kept, *tags]) + "\n\n"
