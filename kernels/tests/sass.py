"""Reads a cubin's machine code (SASS) and the resources that it asks for, with nvdisasm and cuobjdump."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import kernel_toolkit
import pins

NATIVE = pins.ROOT / ".native"

_SECTION = re.compile(r"\s*\.section\s+\.text\.(\w+),")
_LABEL = re.compile(r"(\.L_x?_?\d+):")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;]*);")
_TARGET = re.compile(r"`\((\.L_x?_?\d+)\)")
_TARGET_LINE = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_RESOURCES = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")


@dataclass(frozen=True)
class Instruction:
    """One instruction: byte address, full opcode such as `LDG.E.128`, operands as text."""

    address: int
    opcode: str
    operands: str


@dataclass(frozen=True)
class Function:
    """One kernel's code. `loops` are the (first, last) addresses that a backward branch spans."""

    name: str
    instructions: tuple[Instruction, ...]
    loops: tuple[tuple[int, int], ...]

    def opcodes(self, within: tuple[int, int] | None = None) -> Counter[str]:
        """How often each opcode occurs, in all or between two addresses."""
        first, last = within or (0, self.instructions[-1].address)
        return Counter(i.opcode for i in self.instructions if first <= i.address <= last)

    def count(self, opcode: str, *, within: tuple[int, int] | None = None) -> int:
        """Instructions whose opcode matches a regular expression as a whole."""
        return sum(times for found, times in self.opcodes(within).items() if re.fullmatch(opcode, found))


@dataclass(frozen=True)
class Resources:
    """What the loader reserves for a kernel: registers a thread, bytes of stack a thread, of shared memory a block."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def target(cubin: Path) -> str:
    """The architecture that a cubin was compiled for, such as `sm_90a`."""
    return _TARGET_LINE.search(_disassembly(cubin))[1]


@cache
def functions(cubin: Path) -> dict[str, Function]:
    """The kernels of a cubin by name. Each file is read once in a process."""
    return parse(_disassembly(cubin))


@cache
def resources(cubin: Path) -> dict[str, Resources]:
    """The same kernels' resources, from the cubin itself rather than from its compiler's report."""
    found = _RESOURCES.findall(_run("cuobjdump", "-res-usage", str(cubin)))
    return {name: Resources(*(int(value) for value in values)) for name, *values in found}


def read_all(cubins: list[Path]) -> None:
    """Read many at once, which is what takes the time: a tool runs for each."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        list(pool.map(functions, cubins))


def parse(text: str) -> dict[str, Function]:
    """The kernels in nvdisasm's output."""
    found: dict[str, Function] = {}
    for name, body in _sections(text):
        instructions: list[Instruction] = []
        labels: dict[str, int] = {}
        waiting: list[str] = []
        for line in body:
            if label := _LABEL.match(line):
                waiting.append(label[1])
            elif match := _INSTRUCTION.match(line):
                instruction = Instruction(int(match[1], 16), match[2], match[3].strip())
                instructions.append(instruction)
                labels |= dict.fromkeys(waiting, instruction.address)
                waiting.clear()
        branches = [(i, _TARGET.search(i.operands)) for i in instructions if i.opcode.startswith("BRA")]
        targets = [(labels[t[1]], i.address) for i, t in branches if t and t[1] in labels]
        # A branch to itself is the padding at the end of a function.
        loops = sorted({(start, end) for start, end in targets if start < end})
        found[name] = Function(name, tuple(instructions), tuple(loops))
    return found


def _sections(text: str) -> list[tuple[str, list[str]]]:
    sections: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if match := _SECTION.match(line):
            sections.append((match[1], []))
        elif sections:
            sections[-1][1].append(line)
    return sections


@cache
def _disassembly(cubin: Path) -> str:
    return _run("nvdisasm", "-c", "-ndf", str(cubin))  # code alone, without analysing its data flow


def _run(tool: str, *arguments: str) -> str:
    command = [str(kernel_toolkit.reader(pins.load(), NATIVE, tool)), *arguments]
    path = {"PATH": str(Path(command[0]).parent)}  # cuobjdump runs nvdisasm
    return subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout
