"""What the compilers make of the block-scaled kernels, and where they are. cubin_rules.py holds the rest."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import kernel_manifest
import pins
import sass
from kernel_toolkit import Compiler

KERNELS = pins.ROOT / "kernels"
NAMES = {"moet_decode13_n8_bs", "moet_decode2_n8_bs"}
INSTRUCTION = "QMMA.SF.16832.F32.E4M3.E4M3.E8"
EACH = 2 * 4  # matrix instructions for a scale block: four row tiles in either tier
PTX = re.compile(r"mma\.sync\S*\.block_scale\S* .*\{(\d), *(\d)\}, \{%\w+\}, \{(\d), *(\d)\};")


def test_only_sm_120a_has_them() -> None:
    entries = kernel_manifest.entries(kernel_manifest.read(KERNELS))
    holders = {name for name, entry in entries.items() if NAMES & entry["functions"].keys()}
    assert holders == {"sm_120a/decode_bs"}
    assert entries["sm_120a/decode_bs"]["functions"].keys() == NAMES


def test_their_code_multiplies_with_scales() -> None:
    functions = sass.functions(kernel_manifest.cubin_path(KERNELS, "sm_120a/decode_bs"))
    assert {name: code.count(re.escape(INSTRUCTION)) for name, code in functions.items()} == dict.fromkeys(
        NAMES, 4 * EACH
    )


def test_every_scale_block_takes_its_own_scales(tmp_path: Path, compiler: Compiler) -> None:
    """The CPU test does not see the operands that pick a scale: bytes 0 to 3, of the first lanes of each four."""
    ptx, source = tmp_path / "decode_bs.ptx", KERNELS / "src" / "decode_bs.cu"
    flags = ["-std=c++17", "-arch=sm_120a", "-ptx", "-o", str(ptx)]
    subprocess.run([str(compiler.nvcc), *flags, str(source)], check=True)
    selectors = Counter(tuple(map(int, found)) for found in PTX.findall(ptx.read_text()))
    assert selectors == {(byte, 0, byte, 0): len(NAMES) * EACH for byte in range(4)}
