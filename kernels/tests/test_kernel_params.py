"""The structs that Python hands to the kernels lie in memory as the kernels read them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pins
import pytest

from moet_w2.kernels import params, quantize

INCLUDE = pins.ROOT / "kernels" / "include"
MIRRORS = {"params.cuh": params.STRUCTS, "quantize_params.cuh": (quantize.CountParams, quantize.PackParams)}
DEVICE_ONLY = {"ZeroCounts"}  # of two int32, which Python only makes room for

Layout = list[tuple[str, int, int]]  # field, offset and bytes; last the struct itself, at its own size


def fields(header: str) -> dict[str, list[str]]:
    """Struct -> its fields in their order, as the header's text has them."""
    text = re.sub(r"//.*", "", header)
    found = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", text, re.DOTALL):
        found[name] = [re.split(r"[\s*]+", line.strip())[-1] for line in body.split(";") if line.strip()]
    return found


def compiled(header: Path, folder: Path) -> dict[str, Layout]:
    """Struct -> its layout, by the host's compiler; nvcc lays structs out as the host's compiler does."""
    lines = []
    for name, names in fields(header.read_text()).items():
        for field in names:
            place = f"offsetof(moet::{name}, {field}), sizeof(moet::{name}::{field})"
            lines.append(f'std::printf("{name} {field} %zu %zu\\n", {place});')
        lines.append(f'std::printf("{name} {name} %zu 0\\n", sizeof(moet::{name}));')
    source = folder / "offsets.cpp"
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "{header}"\nint main() {{\n' + "\n".join(lines) + "\n}\n"
    )
    program = folder / "offsets"
    subprocess.run(["g++", "-std=c++17", "-O0", "-o", str(program), str(source)], check=True)
    layouts: dict[str, Layout] = {}
    for line in subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines():
        name, field, offset, size = line.split()
        layouts.setdefault(name, []).append((field, int(offset), int(size)))
    return layouts


def mirrored(struct: type[ctypes.Structure]) -> Layout:
    found = [(name, getattr(struct, name)) for name, *_ in struct._fields_]
    layout = [(name, field.offset, field.size) for name, field in found]
    return [*layout, (struct.__name__, ctypes.sizeof(struct), 0)]


@pytest.mark.parametrize("name", MIRRORS)
def test_every_struct_has_a_mirror_with_its_layout(name: str, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("nothing can be compiled here: no g++")
    layouts = compiled(INCLUDE / name, tmp_path)
    mirrors = {struct.__name__: mirrored(struct) for struct in MIRRORS[name]}
    assert {struct: layout for struct, layout in layouts.items() if struct not in DEVICE_ONLY} == mirrors


def test_every_header_of_params_is_compared() -> None:
    assert {path.name for path in INCLUDE.glob("*params*.cuh")} == MIRRORS.keys()


HEADER = """\
#include <cstdint>
namespace moet {
struct Example {
    const uint8_t* data;  // [a]; and more
    int32_t rows;
    float limit;
    int32_t cols;
};
}
"""


class Example(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("rows", ctypes.c_int32),
        ("limit", ctypes.c_float),
        ("cols", ctypes.c_int32),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int32_t rows;", "int32_t rows;"),
        ("int32_t rows;", "int64_t rows;"),
        ("int32_t cols;", "int32_t cols;\n    int32_t padding;"),  # the size stays
        ("int32_t cols;", ""),
        ("float limit;\n    int32_t cols;", "int32_t cols;\n    float limit;"),
        ("rows", "lines"),
    ],
)
def test_a_mirror_that_does_not_fit_is_found(tmp_path: Path, old: str, new: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("nothing can be compiled here: no g++")
    header = tmp_path / "example.cuh"
    assert old in HEADER
    header.write_text(HEADER.replace(old, new))
    assert (compiled(header, tmp_path) == {"Example": mirrored(Example)}) == (old == new)
