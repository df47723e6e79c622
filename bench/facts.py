"""What every result file says about where it came from: hardware, versions, commit, command."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIGEST = "payload_sha256"
"""Last field of a result file: an edit by hand no longer fits it. It guards against slips, not against forgery. A file
from before there was one stays valid; `bench/cli.py lint` says so."""


def provenance() -> dict[str, Any]:
    """Hardware, versions, commit and command of the running benchmark, JSON-serialisable."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *_arguments(sys.argv[1:])]),
        **_revision(),
        "load_average": round(os.getloadavg()[0], 2),
        "hardware": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "gpu": _gpu(),
        },
        "versions": {
            "python": platform.python_version(),
            "kernel": platform.release().partition("-")[0],
            **{name: _version(name) for name in ("torch", "vllm", "moet-w2")},
        },
    }


def _revision() -> dict[str, Any]:
    """Of the tree: git's word, or MOET_BENCH_COMMIT, as ``git describe --always --dirty --abbrev=40`` writes it.

    A GPU host may hold a copy of the tree with another history or none; whoever copies it says what it is.
    """
    if said := os.environ.get("MOET_BENCH_COMMIT"):
        return {"commit": said.removesuffix("-dirty"), "dirty": said.endswith("-dirty")}
    return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def write(path: Path, results: dict[str, Any]) -> None:
    """Write a result file: provenance first, then the results, last the digest of both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sealed({"provenance": provenance(), **results}), indent=2) + "\n")


def digest(document: dict[str, Any]) -> str:
    """sha256, in hex, of everything but the digest itself: as JSON with sorted keys and no spaces, in UTF-8."""
    rest = {key: value for key, value in document.items() if key != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document as JSON gives it back, with its digest."""
    plain = json.loads(json.dumps(document))
    plain.pop(DIGEST, None)
    return plain | {DIGEST: digest(plain)}


def _arguments(given: list[str]) -> list[str]:
    """The command line without --out, and with FOLDER after --dir: one machine's folders are nobody else's business."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out")
    parser.add_argument("--dir")
    known, kept = parser.parse_known_args(given)
    return kept if known.dir is None else ["--dir", "FOLDER", *kept]


def _git(*arguments: str) -> str | None:
    """Output of git, or None where the tree is no checkout."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpu() -> str | None:
    try:
        import torch

        return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    except ImportError:
        return None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
