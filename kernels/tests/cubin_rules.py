"""What the code of each kernel must look like. Every rule yields one line for each breach; silence is good.

A kernel that breaks one of the rules on its loops is not wrong, but slower than what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sass import Function, Resources

SYSTEM_SHARED = 1024  # bytes that CUDA itself keeps in a block's shared memory from sm_90 on

MATRIX = r"HMMA\.16816\.F32\.BF16"
WARP_GROUP_MATRIX = r"HGMMA\.64x\d+x16\.F32\.BF16"  # Hopper's own
BLOCK_SCALED = r"[OQ]MMA\.SF\..*"
ANY_MATRIX = rf"{MATRIX}|{WARP_GROUP_MATRIX}|{BLOCK_SCALED}"
COPY = r"LDGSTS\..*"  # from global to shared memory, without registers
WIDE_LOAD = r"(LDG|LDGSTS)\..*\.128(\..*)?"
LOCAL = r"(LDL|STL)(\..*)?"
READ_ONLY = r"LDG\..*\.CONSTANT"

# Kernels of a chain may start before their predecessor in the stream has ended: they say when they need it to have
# ended (ACQBULK) and from when on their successor may start (PREEXIT). chain.cuh says why in this order.
ORDERS = {
    r"moet_(routing|decode\d+_n\d+|prefill\d+|combine)(_bs)?": ["ACQBULK", "PREEXIT"],
    r"moet_count_zeros": ["PREEXIT"],
    r"moet_pack_planes": ["ACQBULK"],
}

GEMM = r"moet_(decode|prefill)\d+(_n\d+)?(_bs)?"

# What makes a 16 x 16 fragment of weights, four registers a lane, in the loops over weights: mma.cuh. A register of
# two-bit weights is one logic operation and one multiply-add, which is a plain add for one register in eight. One of
# FP4 weights is two logic operations and a bf16 product; products show how many fragments are FP4.
W2_MULTIPLY_ADDS, W2_LOGIC, FP4_LOGIC, FP4_PRODUCTS = 3.5, 4, 8, 4
LOGIC_TOLERANCE = 0.1  # loops have some of their own; up to 7.8% was measured, in prefill on sm_80 .. sm_90a
PRODUCT = r"H(MUL|FMA)2\.BF16.*"
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
    bf16 = function.count(rf"{MATRIX}|{WARP_GROUP_MATRIX}" if arch == "sm_90a" else MATRIX)
    scaled = function.count(BLOCK_SCALED)
    if bool(bf16) == block_scaled or bool(scaled) != block_scaled or function.count(r"\w*MMA\..*") != bf16 + scaled:
        wanted = "block-scaled ones alone" if block_scaled else "bf16 ones alone"
        yield f"{function.name}: {bf16} bf16 and {scaled} block-scaled matrix instructions, wanted {wanted}"


def wide_loads(function: Function) -> Iterator[str]:
    """The GEMMs read 16 bytes a lane inside the loop over weights, and copy no less at a time."""
    if not re.fullmatch(GEMM, function.name):
        return
    loops = matrix_loops(function)
    if not any(function.count(WIDE_LOAD, within=loop) for loop in loops):
        yield f"{function.name}: no 128-bit global load in a loop with matrix instructions"
    narrow = function.count(COPY) - function.count(rf"(?={COPY}$){WIDE_LOAD}")
    if narrow:
        yield f"{function.name}: {narrow} copies to shared memory of less than 128 bits"


def weight_loops(function: Function) -> Iterator[str]:
    """Weights are made by the multiply-add pipe, with few logic operations beside it."""
    if not re.fullmatch(GEMM, function.name) or function.name.endswith("_bs"):
        return
    tokens = int(function.name.rpartition("_n")[2]) if "_n" in function.name else PREFILL_TOKENS
    loops = matrix_loops(function)
    fragments = sum(_columns(function, loop) for loop in loops) / tokens
    if not fragments or fragments % 1:
        yield f"{function.name}: its loops make {fragments} fragments of weights, wanted a whole number of them"
        return
    multiply_adds, logic, products = (
        sum(function.count(code, within=loop) for loop in loops) for code in ("IMAD", r"LOP3\.LUT", PRODUCT)
    )
    fp4 = products / FP4_PRODUCTS
    least = W2_MULTIPLY_ADDS * (fragments - fp4)
    most = (1 + LOGIC_TOLERANCE) * (W2_LOGIC * (fragments - fp4) + FP4_LOGIC * fp4)
    if multiply_adds < least:
        yield f"{function.name}: {multiply_adds} multiply-adds in its loops, wanted at least {least:.0f}"
    if logic > most:
        yield f"{function.name}: {logic} logic operations in its loops, wanted at most {most:.0f}"


def _columns(function: Function, loop: tuple[int, int]) -> int:
    """Token columns that the loop's bf16 matrix instructions take, each with one fragment: HMMA 8, HGMMA.64xnx16 n."""
    columns = 8 * function.count(MATRIX, within=loop)
    for opcode, times in function.opcodes(loop).items():
        if re.fullmatch(WARP_GROUP_MATRIX, opcode):
            columns += times * int(opcode.split("x")[1])
    return columns


def chain(arch: str, function: Function) -> Iterator[str]:
    """From sm_90 on kernels of a chain wait for their predecessor and release their successor as they should, each
    once; no other kernel, and nothing before sm_90, does either."""
    wanted = next((order for name, order in ORDERS.items() if re.fullmatch(name, function.name)), [])
    wanted = wanted if architecture(arch) >= 90 else []
    order = [i.opcode for i in function.instructions if i.opcode in ("ACQBULK", "PREEXIT")]
    if order != wanted:
        yield f"{function.name}: waits and releases are {order}, wanted {wanted}"


def early_loads(function: Function) -> Iterator[str]:
    """The GEMMs read nothing by the read-only path before they have waited: their activations may still be written
    then, and the source's order does not bind the compiler for such loads."""
    wait = next((i.address for i in function.instructions if i.opcode == "ACQBULK"), None)
    if wait is None or not re.fullmatch(GEMM, function.name):
        return
    if count := function.count(READ_ONLY, within=(0, wait)):
        yield f"{function.name}: {count} read-only loads before it waits for its predecessor"


def matrix_loops(function: Function) -> list[tuple[int, int]]:
    """Innermost loops that hold matrix instructions."""
    loops = [loop for loop in function.loops if function.count(ANY_MATRIX, within=loop)]
    return [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def breaches(arch: str, entry: dict[str, Any], code: dict[str, Function], has: dict[str, Resources]) -> list[str]:
    """Every breach of every rule in one cubin."""
    found = [*resources(arch, entry["functions"], has), *spills(entry["functions"])]
    for function in code.values():
        found += [*local_memory(function), *matrix(arch, function), *wide_loads(function)]
        found += [*weight_loops(function), *chain(arch, function), *early_loads(function)]
    return found
