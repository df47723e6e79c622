"""What the code of each kernel must look like. Every rule yields one line for each breach; silence is good.

The numbers were read from the code of all five architectures; TOLERANCE is what another version of the compiler
may change without anyone having looked. A kernel that breaks one is not wrong, but slower than what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sass import Function, Resources

TOLERANCE = 0.05
SYSTEM_SHARED = 1024  # bytes that CUDA itself keeps in a block's shared memory from sm_90 on

MATRIX = r"HMMA\.16816\.F32\.BF16"
BLOCK_SCALED = r"[OQ]MMA\.SF\..*"
WIDE_LOAD = r"LDG\..*\.128(\..*)?"
LOCAL = r"(LDL|STL)(\..*)?"

# Kernels that start before their predecessor in the stream has ended, and say themselves when they need it.
CHAIN = r"moet_(routing|decode\d+_n\d+|prefill\d+|combine)"
GEMM = r"moet_(decode|prefill)\d+(_n\d+)?(_bs)?"

# In the loops over weights, for each 16 x 16 fragment of weights that is made (eight tokens take one matrix
# instruction each): fewest multiply-adds, and most logic operations. layout.cuh means four of the former, one for
# each pair of weights that a lane moves into place and scales; the compiler makes some of them adds.
MULTIPLY_ADDS = 3.3
LOGIC = 5.75
PREFILL_TOKENS = 64


def architecture(arch: str) -> int:
    """`sm_90a` -> 90."""
    return int(re.sub(r"\D", "", arch))


def resources(arch: str, reported: dict[str, dict[str, int]], found: dict[str, Resources]) -> Iterator[str]:
    """The manifest names exactly the kernels of the cubin, with the registers, stack and shared memory it has."""
    if reported.keys() != found.keys():
        yield f"kernels are {', '.join(sorted(found))}, the manifest says {', '.join(sorted(reported))}"
        return
    for name, has in found.items():
        says = reported[name]
        if (has.registers, has.stack_bytes) != (says["registers"], says["stack_bytes"]):
            yield f"{name}: {has}, the manifest says {says}"
        shared = {says["shared_bytes"]}
        if architecture(arch) >= 90:
            shared.add(says["shared_bytes"] + SYSTEM_SHARED)
        if has.shared_bytes not in shared:
            yield f"{name}: {has.shared_bytes} bytes of shared memory, the manifest says {says['shared_bytes']}"


def spills(reported: dict[str, dict[str, int]]) -> Iterator[str]:
    """No register is ever put aside in memory."""
    for name, says in reported.items():
        for field in ("stack_bytes", "spill_store_bytes", "spill_load_bytes"):
            if says[field]:
                yield f"{name}: {field} is {says[field]}, wanted 0"


def local_memory(function: Function) -> Iterator[str]:
    """No thread keeps anything in local memory, which is device memory."""
    if count := function.count(LOCAL):
        yield f"{function.name}: {count} accesses to local memory, wanted 0"


def matrix(arch: str, function: Function) -> Iterator[str]:
    """The GEMMs use the matrix instruction that was validated; variants named `_bs` the block-scaled one instead."""
    if not re.fullmatch(GEMM, function.name):
        return
    block_scaled = function.name.endswith("_bs")
    if block_scaled and arch != "sm_120a":
        yield f"{function.name}: a block-scaled kernel in a cubin for {arch}, wanted only for sm_120a"
    counts = function.count(MATRIX), function.count(BLOCK_SCALED)
    if bool(counts[0]) == block_scaled or bool(counts[1]) != block_scaled:
        wanted = "block-scaled ones alone" if block_scaled else "bf16 ones alone"
        yield f"{function.name}: {counts[0]} bf16 and {counts[1]} block-scaled matrix instructions, wanted {wanted}"


def wide_loads(function: Function) -> Iterator[str]:
    """The GEMMs read weights 16 bytes a lane: inside the loop over weights."""
    if not re.fullmatch(GEMM, function.name):
        return
    loops = matrix_loops(function)
    if not any(function.count(WIDE_LOAD, within=loop) for loop in loops):
        yield f"{function.name}: no 128-bit global load in a loop with matrix instructions"


def weight_loops(function: Function) -> Iterator[str]:
    """Weights are made by the multiply-add pipe, with no more logic operations than was measured."""
    if not re.fullmatch(GEMM, function.name) or function.name.endswith("_bs"):
        return
    tokens = int(function.name.rpartition("_n")[2]) if "_n" in function.name else PREFILL_TOKENS
    loops = matrix_loops(function)
    fragments = sum(function.count(MATRIX, within=loop) for loop in loops) / (tokens // 8)
    if not fragments or fragments % 1:
        yield f"{function.name}: its loops make {fragments} fragments of weights, wanted a whole number of them"
        return
    multiply_adds = sum(function.count("IMAD", within=loop) for loop in loops) / fragments
    logic = sum(function.count(r"LOP3\.LUT", within=loop) for loop in loops) / fragments
    if multiply_adds < (1 - TOLERANCE) * MULTIPLY_ADDS:
        yield f"{function.name}: {multiply_adds:.2f} multiply-adds a fragment, measured {MULTIPLY_ADDS}"
    if logic > (1 + TOLERANCE) * LOGIC:
        yield f"{function.name}: {logic:.2f} logic operations a fragment, measured {LOGIC}"


def chain(arch: str, function: Function) -> Iterator[str]:
    """From sm_90 on a kernel of the chain waits for its predecessor (ACQBULK) and only then lets its successor
    start (PREEXIT): kernels/include/chain.cuh says why in this order."""
    if architecture(arch) < 90 or not re.fullmatch(CHAIN, function.name):
        return
    order = [i.opcode for i in function.instructions if i.opcode in ("ACQBULK", "PREEXIT")]
    if order != ["ACQBULK", "PREEXIT"]:
        yield f"{function.name}: waits and releases are {order or 'none'}, wanted one ACQBULK, then one PREEXIT"


def matrix_loops(function: Function) -> list[tuple[int, int]]:
    """Innermost loops that hold matrix instructions."""
    loops = [loop for loop in function.loops if function.count(rf"{MATRIX}|{BLOCK_SCALED}", within=loop)]
    return [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def breaches(arch: str, entry: dict[str, Any], code: dict[str, Function], has: dict[str, Resources]) -> list[str]:
    """Every breach of every rule in one cubin."""
    found = [*resources(arch, entry["functions"], has), *spills(entry["functions"])]
    for function in code.values():
        found += [*local_memory(function), *matrix(arch, function), *wide_loads(function)]
        found += [*weight_loops(function), *chain(arch, function)]
    return found
