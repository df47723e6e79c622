"""Makes cubins/ and MANIFEST.json out of kernels/src, and again only what has changed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernel_compile
import kernel_manifest
import kernel_sources
from kernel_sources import Job
from kernel_toolkit import Compiler


def build(root: Path, out: Path, compiler: Compiler, architectures: list[str], *, force: bool = False) -> int:
    """Bring `out` up to date with the tree. Returns how many cubins were compiled.

    A cubin is kept if its content hash is that of the manifest and its bytes are too. Each new one replaces the
    old in one step, the manifest last.
    """
    identity = {"version": compiler.version, "build": compiler.build}
    jobs = kernel_sources.jobs(root, architectures)
    inputs = {job.source: kernel_sources.inputs(root, job.source) for job in jobs}
    content = {job: kernel_sources.content(job, inputs[job.source], identity) for job in jobs}
    known = {} if force else kernel_manifest.entries(kernel_manifest.read(out))
    kept = {job.name: known[job.name] for job in jobs if kernel_manifest.is_current(out, job, content[job], known)}
    todo = [job for job in jobs if job.name not in kept]

    def compile_one(job: Job) -> dict[str, object]:
        compiled = kernel_compile.run(compiler.nvcc, root, job)
        _replace(kernel_manifest.cubin_path(out, job.name), compiled.image)
        return compiled.entry(job, inputs[job.source], content[job])

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        made = dict(zip([job.name for job in todo], pool.map(compile_one, todo), strict=True))
    manifest = {"format": kernel_manifest.FORMAT, "compiler": identity, "cubins": dict(sorted((kept | made).items()))}
    _replace(out / "MANIFEST.json", (json.dumps(manifest, indent=1) + "\n").encode())
    for path in set((out / "cubins").rglob("*.cubin")) - {kernel_manifest.cubin_path(out, job.name) for job in jobs}:
        path.unlink()
    return len(todo)


def _replace(path: Path, data: bytes) -> None:
    """Write a file in one step; leave one alone that has these bytes."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data)
    temporary.replace(path)
