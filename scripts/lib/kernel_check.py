"""Whether cubins are what the tree gives: by hash, and by compiling everything again elsewhere.

What was reproduced once on this machine is noted beside the downloads, outside of the tree, as a hash over the
cubin's whole entry in the manifest (inputs, flags, compiler, sha256, registers) and the host's compiler. Only such a
very entry is not compiled again, so on a machine that has not seen it, or after any change, it is.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import fetch
import kernel_build
import kernel_manifest
import kernel_toolkit
import stamp
from kernel_toolkit import Compiler


def notes_dir() -> Path:
    """Folder of the notes: one empty file for each reproduced entry, named by its hash."""
    return fetch.cache_dir().parent / "kernels"


def note_of(entry: dict[str, Any], compiler: Compiler) -> str:
    """Name of the note that an entry was reproduced here."""
    return stamp.digest([("entry", entry), ("build", compiler.build), ("host", kernel_toolkit.host_version())])


def check(
    root: Path, out: Path, compiler: Compiler, architectures: list[str], *, notes: Path, force: bool = False
) -> tuple[list[str], int]:
    """Every way in which `out` is not what the tree gives, and how many cubins were compiled to find out.

    Cubins without a note, or all with `force`, are compiled into a temporary folder. The manifests hold the hash of
    every cubin and the files are held to theirs, so equal manifests mean equal bytes.
    """
    problems = kernel_manifest.stale(root, out, compiler.version, architectures)
    committed = kernel_manifest.read(out)
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        if not force:
            _take_noted(out, fresh, committed, compiler, notes)
        compiled = kernel_build.build(root, fresh, compiler, architectures)
        made = kernel_manifest.read(fresh)
    problems += [f"MANIFEST.json: {line}" for line in kernel_manifest.differences(committed, made)]
    notes.mkdir(parents=True, exist_ok=True)
    for entry in made["cubins"].values():
        (notes / note_of(entry, compiler)).touch()
    return problems, compiled


def _take_noted(out: Path, fresh: Path, committed: dict[str, Any], compiler: Compiler, notes: Path) -> None:
    """Put into `fresh` what need not be compiled again. The build that follows looks at the hashes of all of it."""
    entries = kernel_manifest.entries(committed).items()
    noted = {name: entry for name, entry in entries if (notes / note_of(entry, compiler)).is_file()}
    for name in noted:
        source, target = (kernel_manifest.cubin_path(tree, name) for tree in (out, fresh))
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copyfile(source, target)
    (fresh / "MANIFEST.json").write_text(json.dumps({"format": kernel_manifest.FORMAT, "cubins": noted}))
