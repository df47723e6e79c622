"""kernels/MANIFEST.json: what each cubin was made from, what its kernels use, and whether it is still current."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernel_sources
from build_errors import BuildError
from kernel_sources import Job

FORMAT = 1  # moet_w2/kernels/cubins.py reads the same


def cubin_path(out: Path, name: str) -> Path:
    """Where the cubin of a manifest's entry lies."""
    return out / "cubins" / f"{name}.cubin"


def read(out: Path) -> dict[str, Any]:
    """The manifest; empty if there is none. Raises BuildError if it is damaged."""
    path = out / "MANIFEST.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BuildError(f"{path} is not JSON ({error}); delete it and run `make kernels`") from None


def entries(manifest: dict[str, Any]) -> dict[str, Any]:
    """`architecture/source` -> its entry; empty for a manifest of another format."""
    return manifest.get("cubins", {}) if manifest.get("format") == FORMAT else {}


def is_current(out: Path, job: Job, content: str, known: dict[str, Any]) -> bool:
    """Whether the cubin at hand is the one that the manifest names, and was made from these inputs."""
    entry, path = known.get(job.name, {}), cubin_path(out, job.name)
    if entry.get("content") != content or not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]


def stale(root: Path, out: Path, version: str, architectures: list[str]) -> list[str]:
    """What in `out` was not made from this tree by the pinned compiler, or is not what the manifest says. Compiles
    nothing."""
    manifest = read(out)
    if not manifest:
        return ["MANIFEST.json: missing; run `make kernels`"]
    if manifest.get("format") != FORMAT:
        return [f"MANIFEST.json: format {manifest.get('format')}, wanted {FORMAT}"]
    problems = []
    if manifest["compiler"]["version"] != version:
        problems.append(f"MANIFEST.json: made by nvcc {manifest['compiler']['version']}, pinned is {version}")
    known, jobs = entries(manifest), kernel_sources.jobs(root, architectures)
    for job in jobs:
        inputs = kernel_sources.inputs(root, job.source)
        if job.name not in known:
            problems.append(f"{job.name}: not in MANIFEST.json")
        elif known[job.name]["content"] != kernel_sources.content(job, inputs, manifest["compiler"]):
            changed = sorted(set(inputs.items()) ^ set(known[job.name]["inputs"].items()))
            names = ", ".join(sorted({name for name, _ in changed})) or "the flags, or MANIFEST.json"
            problems.append(f"{job.name}: made from other inputs; changed: {names}")
        elif not is_current(out, job, known[job.name]["content"], known):
            problems.append(f"{job.name}: the cubin is missing or not the one that MANIFEST.json names")
    wanted = {job.name for job in jobs}
    problems += [f"{name}: in MANIFEST.json, but not asked for by the tree" for name in sorted(known.keys() - wanted)]
    files = {path.relative_to(out / "cubins").with_suffix("").as_posix() for path in (out / "cubins").rglob("*.cubin")}
    problems += [f"{name}: a cubin that is not asked for by the tree" for name in sorted(files - wanted)]
    return problems


def differences(committed: Any, compiled: Any, at: str = "") -> Iterator[str]:
    """Each value that two JSON documents disagree on, by its path."""
    if isinstance(committed, dict) and isinstance(compiled, dict):
        for name in sorted(committed.keys() | compiled.keys()):
            yield from differences(committed.get(name), compiled.get(name), f"{at}.{name}" if at else name)
    elif committed != compiled:
        yield f"{at}: {_short(committed)} committed, {_short(compiled)} compiled"


def _short(value: Any) -> str:
    return "nothing" if value is None else "an entry" if isinstance(value, dict) else json.dumps(value)


def summary(manifest: dict[str, Any]) -> list[str]:
    """A line for each cubin: its size, and the most registers and spills of its kernels."""
    lines = []
    for name, entry in manifest["cubins"].items():
        functions = entry["functions"].values()
        registers = max(function["registers"] for function in functions)
        spills = sum(function["spill_store_bytes"] + function["spill_load_bytes"] for function in functions)
        note = f", {spills} bytes of spills" if spills else ""
        lines.append(f"{name:24} {entry['bytes']:9,} bytes, {len(functions)} kernels, <= {registers} registers{note}")
    return lines
