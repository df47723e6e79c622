"""Runs nvcc for one cubin and reads what ptxas reports.

nvcc runs in the root of the tree with relative paths, and without the variables through which a shell could add
flags or folders of headers: so the bytes depend on the tree and the compiler alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from build_errors import BuildError
from kernel_sources import Job

_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_STACK_FIELDS = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
_USED = re.compile(r"Used (\d+) registers(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Compiled:
    """A cubin and, for each of its kernels, what it uses."""

    image: bytes
    functions: dict[str, dict[str, int]]

    def entry(self, job: Job, inputs: dict[str, str], content: str) -> dict[str, object]:
        """The cubin's part of the manifest."""
        return {
            "source": str(job.source),
            "inputs": inputs,
            "flags": list(job.flags),
            "content": content,
            "bytes": len(self.image),
            "sha256": hashlib.sha256(self.image).hexdigest(),
            "functions": self.functions,
        }


def run(nvcc: Path, root: Path, job: Job) -> Compiled:
    """Compile. Raises BuildError with the compiler's own words if it fails, and if it reports no kernel."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.cubin"
        command = [str(nvcc), *job.flags, "-cubin", "-o", str(output), str(job.source)]
        done = subprocess.run(command, cwd=root, env={**kept, "LC_ALL": "C"}, capture_output=True, text=True)
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            text = "\n".join(line for line in lines if not line.startswith("ptxas info"))
            raise BuildError(f"nvcc failed on {job.source} for {job.arch}:\n{text}")
        image = output.read_bytes()
    functions = report(done.stderr)
    if not functions:
        raise BuildError(f'{job.source} for {job.arch} has no kernel (extern "C" __global__)')
    return Compiled(image, functions)


def report(text: str) -> dict[str, dict[str, int]]:
    """Kernel -> its registers, and bytes of stack frame, spill stores, spill loads and static shared memory.

    ptxas names a kernel, then the properties of it and of device functions that were not inlined, then what the
    kernel uses. Stack and spills of such functions are added to the kernel's.
    """
    functions: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in text.splitlines():
        if entry := _ENTRY.search(line):
            current = functions.setdefault(entry[1], {"registers": 0, "shared_bytes": 0})
            current |= dict.fromkeys(_STACK_FIELDS, 0)
        elif stack := _STACK.search(line):
            for name, value in zip(_STACK_FIELDS, stack.groups(), strict=True):
                current[name] += int(value)
        elif used := _USED.search(line):
            shared = _SHARED.search(used[2])
            current |= {"registers": int(used[1]), "shared_bytes": int(shared[1]) if shared else 0}
    return dict(sorted(functions.items()))
