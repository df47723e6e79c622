"""What one e4m3 matrix instruction becomes on each architecture, and the bfloat16 one beside it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

PROBE = Path(__file__).resolve().parent.parent / "probes" / "fp8_mma.cu"
ARCHITECTURES = ("sm_89", "sm_90a", "sm_100a", "sm_120a")
"""Those of the kernels' that have e4m3 at all."""


def fp8() -> dict[str, dict[str, dict[str, int]]]:
    """Architecture -> kernel of the probe -> matrix and conversion instructions, with how often each occurs."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for arch in ARCHITECTURES:
            cubin = Path(folder) / f"{arch}.cubin"
            subprocess.run(["nvcc", "-cubin", "-O3", f"-arch={arch}", "-o", cubin, PROBE], check=True)
            text = subprocess.run(["nvdisasm", "-c", cubin], check=True, capture_output=True, text=True).stdout
            found[arch] = count(text)
    return found


def count(listing: str) -> dict[str, dict[str, int]]:
    """The same of one listing of nvdisasm."""
    kernels: dict[str, dict[str, int]] = {}
    for section in re.split(r"^\.text\.", listing, flags=re.MULTILINE)[1:]:
        name, _, body = section.partition(":")
        kernels[name] = dict(Counter(re.findall(r"\b(?:[A-Z]+MMA|F2FP)[A-Z0-9_.]*", body)))
    return kernels
