"""The committed cubins are those of this tree, and their code is what the kernels were written to become."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import cubin_rules
import kernel_compile
import kernel_manifest
import pins
import pytest
import sass
from kernel_sources import Job
from kernel_toolkit import Compiler
from sass import Function, Instruction, Resources

from moet_w2.kernels import quantize, shapes

KERNELS = pins.ROOT / "kernels"
ENTRIES = kernel_manifest.entries(kernel_manifest.read(KERNELS))


def cubin(name: str) -> Path:
    return kernel_manifest.cubin_path(KERNELS, name)


# -- what is committed


def test_the_committed_cubins_are_of_this_tree() -> None:
    table = pins.load()
    version, architectures = table.get("cuda.compiler"), table.get("cuda.kernel_architectures")
    assert kernel_manifest.stale(pins.ROOT, KERNELS, version, architectures) == []


def test_every_architecture_has_what_the_runtime_launches() -> None:
    wanted = {
        (step.source, step.name)
        for tokens in range(1, 1200)
        for hidden, width in ((4096, 2048), (4096, 512), (256, 128))
        for step in shapes.plan(256, hidden, width, tokens, 6).steps
    }
    wanted |= {("quantize", name) for name in re.findall(r'"(moet_\w+)"', Path(quantize.__file__).read_text())}
    assert len(wanted) > 8
    for arch in pins.load().get("cuda.kernel_architectures"):
        assert [(s, f) for s, f in wanted if f not in ENTRIES[f"{arch}/{s}"]["functions"]] == []


@pytest.fixture(scope="module")
def everything_read() -> None:
    sass.read_all([cubin(name) for name in ENTRIES])


@pytest.mark.usefixtures("everything_read")
@pytest.mark.parametrize("name", ENTRIES)
def test_the_code_keeps_every_rule(name: str) -> None:
    arch, path = name.partition("/")[0], cubin(name)
    assert sass.target(path) == arch
    assert cubin_rules.breaches(arch, ENTRIES[name], sass.functions(path), sass.resources(path)) == []


# -- each rule can fail


REPORTED = {"registers": 8, "stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0, "shared_bytes": 64}


@pytest.mark.parametrize(
    ("arch", "change", "breaches"),
    [
        ("sm_80", {}, 0),
        ("sm_90a", {"shared_bytes": 64 + 1024}, 0),
        ("sm_80", {"shared_bytes": 64 + 1024}, 1),
        ("sm_90a", {"shared_bytes": 0}, 1),
        ("sm_80", {"registers": 9}, 1),
        ("sm_80", {"stack_bytes": 8}, 1),
    ],
)
def test_resources_that_the_manifest_does_not_say_are_found(arch: str, change: dict, breaches: int) -> None:
    has = Resources(**{"registers": 8, "stack_bytes": 0, "shared_bytes": 64} | change)
    assert len(list(cubin_rules.resources(arch, {"f": REPORTED}, {"f": has}))) == breaches


def test_a_kernel_that_the_manifest_does_not_say_is_found() -> None:
    (line,) = cubin_rules.resources("sm_80", {"f": REPORTED}, {"g": Resources(8, 0, 64)})
    assert line == "kernels are g, the manifest says f"


@pytest.mark.parametrize("field", ["stack_bytes", "spill_store_bytes", "spill_load_bytes"])
def test_a_spill_is_found(field: str) -> None:
    assert list(cubin_rules.spills({"f": REPORTED})) == []
    assert list(cubin_rules.spills({"f": REPORTED | {field: 4}})) == [f"f: {field} is 4, wanted 0"]


def code(name: str, *opcodes: str, loop: bool = True) -> Function:
    """A kernel of these opcodes, all of them in one loop; `X*3` stands for three."""
    expanded = [code for opcode, _, times in (o.partition("*") for o in opcodes) for code in [opcode] * int(times or 1)]
    instructions = tuple(Instruction(16 * index, opcode, "") for index, opcode in enumerate(expanded))
    return Function(name, instructions, ((0, 16 * len(expanded) - 16),) if loop else ())


WARP_GROUP = "HGMMA.64x16x16.F32.BF16"
PRODUCT, COPY = "HMUL2.BF16_V2", "LDGSTS.E.BYPASS.LTC128B.128"
HMMA, LOAD, SCALED = "HMMA.16816.F32.BF16", "LDG.E.NA.LTC128B.128.CONSTANT", "QMMA.SF.16832.F32.E4M3.E2M1.E8"


@pytest.mark.parametrize("opcode", ["LDL", "STL.64", "LDL.LU"])
def test_local_memory_is_found(opcode: str) -> None:
    assert list(cubin_rules.local_memory(code("f", "LDG.E", "LDS"))) == []
    assert len(list(cubin_rules.local_memory(code("f", "LDG.E", opcode)))) == 1


@pytest.mark.parametrize(
    ("arch", "name", "opcodes", "breaches"),
    [
        ("sm_80", "moet_decode13_n8", [HMMA], 0),
        ("sm_80", "moet_decode13_n8", ["HMMA.16816.F32"], 1),
        ("sm_120a", "moet_prefill2", [HMMA, SCALED], 1),
        ("sm_120a", "moet_prefill2_bs", [SCALED], 0),
        ("sm_120a", "moet_prefill2_bs", ["OMMA.SF.16864.F32.E2M1.E2M1.E8"], 0),
        ("sm_120a", "moet_prefill2_bs", [HMMA], 1),
        ("sm_100a", "moet_prefill2_bs", [SCALED], 1),
        ("sm_90a", "moet_prefill2", [WARP_GROUP], 0),
        ("sm_90a", "moet_prefill2", [HMMA, WARP_GROUP], 0),
        ("sm_100a", "moet_prefill2", [WARP_GROUP], 1),
        ("sm_90a", "moet_prefill2", ["HGMMA.64x16x16.F32"], 1),
        ("sm_80", "moet_combine", [], 0),
    ],
)
def test_another_matrix_instruction_is_found(arch: str, name: str, opcodes: list[str], breaches: int) -> None:
    assert len(list(cubin_rules.matrix(arch, code(name, "EXIT", *opcodes)))) == breaches


def test_narrow_loads_are_found() -> None:
    assert list(cubin_rules.wide_loads(code("moet_prefill2", HMMA, LOAD))) == []
    assert len(list(cubin_rules.wide_loads(code("moet_prefill2", HMMA, "LDG.E.NA.LTC128B.64.CONSTANT")))) == 1
    assert len(list(cubin_rules.wide_loads(code("moet_prefill2", HMMA, LOAD, loop=False)))) == 1
    assert list(cubin_rules.wide_loads(code("moet_prefill2", HMMA, COPY))) == []
    (line,) = cubin_rules.wide_loads(code("moet_prefill2", HMMA, LOAD, COPY, "LDGSTS.E.LTC128B.64"))
    assert line == "moet_prefill2: 1 copies to shared memory of less than 128 bits"


@pytest.mark.parametrize(
    ("opcodes", "message"),
    [
        # 100 fragments: 60 of two-bit weights, 40 of FP4
        ((f"{HMMA}*200", "IMAD*210", "LOP3.LUT*616", f"{PRODUCT}*160"), None),
        ((f"{WARP_GROUP}*100", "IMAD*210", "LOP3.LUT*616", f"{PRODUCT}*160"), None),
        ((f"{HMMA}*199",), "its loops make 99.5 fragments of weights, wanted a whole number of them"),
        (
            (f"{HMMA}*200", "IMAD*209", "IMAD.SHL.U32*99", f"{PRODUCT}*160"),
            "209 multiply-adds in its loops, wanted at least 210",
        ),
        (
            (f"{HMMA}*200", "IMAD*210", "LOP3.LUT*617", f"{PRODUCT}*160"),
            "617 logic operations in its loops, wanted at most 616",
        ),
    ],
)
def test_a_slower_loop_is_found(opcodes: tuple[str, ...], message: str | None) -> None:
    name = "moet_decode2_n16"
    assert list(cubin_rules.weight_loops(code(name, *opcodes))) == ([f"{name}: {message}"] if message else [])


def test_matrix_instructions_outside_of_loops_are_found() -> None:
    (line,) = cubin_rules.weight_loops(code("moet_prefill2", HMMA, "IMAD*4", loop=False))
    assert line.startswith("moet_prefill2: its loops make 0")


def test_of_nested_loops_only_the_innermost_count() -> None:
    function = Function("", code("", f"{HMMA}*6").instructions, ((0, 16), (0, 80), (32, 48)))
    assert cubin_rules.matrix_loops(function) == [(0, 16), (32, 48)]


@pytest.mark.parametrize(
    ("arch", "name", "opcodes", "breaches"),
    [
        ("sm_90a", "moet_combine", ["ACQBULK", "PREEXIT"], 0),
        ("sm_90a", "moet_combine", ["PREEXIT", "ACQBULK"], 1),
        ("sm_120a", "moet_decode2_n8", ["PREEXIT"], 1),
        ("sm_90a", "moet_prefill13", [], 1),
        ("sm_89", "moet_prefill13", [], 0),
        ("sm_100a", "moet_pack_planes", ["ACQBULK"], 0),
        ("sm_100a", "moet_pack_planes", [], 1),
        ("sm_90a", "moet_pack_fp4", [], 0),
        ("sm_90a", "moet_pack_fp4", ["PREEXIT"], 1),
    ],
)
def test_a_kernel_that_does_not_wait_is_found(arch: str, name: str, opcodes: list[str], breaches: int) -> None:
    assert len(list(cubin_rules.chain(arch, code(name, "EXIT", *opcodes)))) == breaches


def test_a_read_only_load_before_the_wait_is_found() -> None:
    assert list(cubin_rules.early_loads(code("moet_decode2_n8", "LDG.E.128", "ACQBULK", LOAD))) == []
    assert list(cubin_rules.early_loads(code("moet_decode2_n8", LOAD))) == []  # before sm_90 nobody waits
    assert list(cubin_rules.early_loads(code("moet_pack_planes", LOAD, "ACQBULK"))) == []
    (line,) = cubin_rules.early_loads(code("moet_decode2_n8", LOAD, "ACQBULK", LOAD))
    assert line == "moet_decode2_n8: 1 read-only loads before it waits for its predecessor"


# -- the whole way: from a source to a breach

BAD = """\
extern "C" __global__ void __launch_bounds__(1024, 2) moet_prefill2(const float* in, float* out) {
    float sums[64];
    for (int i = 0; i < 64; ++i) sums[i] = in[i * 1024 + threadIdx.x];
    for (int round = 0; round < 100; ++round)
        for (int i = 0; i < 64; ++i) sums[i] = sums[i] * sums[(i + 1) % 64] + in[round];
    for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = sums[i];
}
"""


def test_a_kernel_that_spills_and_has_no_matrix_instruction_breaks_the_rules(
    tmp_path: Path, compiler: Compiler
) -> None:
    (tmp_path / "bad.cu").write_text(BAD)
    job = Job(Path("bad.cu"), "sm_90a")
    compiled = kernel_compile.run(compiler.nvcc, tmp_path, job)
    path = tmp_path / "bad.cubin"
    path.write_bytes(compiled.image)
    entry = compiled.entry(job, {}, "")
    found = cubin_rules.breaches("sm_90a", entry, sass.functions(path), sass.resources(path))
    for part in (
        "stack_bytes is",
        "spill_store_bytes is",
        "local memory",
        "0 bf16 and 0 block",
        "no 128-bit",
        "releases are []",
    ):
        assert any(part in line for line in found), part
    assert not any("the manifest says" in line for line in found)
    doctored = copy.deepcopy(entry)
    doctored["functions"]["moet_prefill2"]["registers"] += 1
    found = cubin_rules.breaches("sm_90a", doctored, sass.functions(path), sass.resources(path))
    assert any("the manifest says" in line for line in found)
    assert sass.target(path) == "sm_90a"
