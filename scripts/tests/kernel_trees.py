"""Small kernel trees to compile in tests: a header, and sources of a few lines that reach it."""

from __future__ import annotations

from pathlib import Path

HEADER = """\
#pragma once
constexpr int kFactor = 3;
"""

SCALE = """\
#include "../include/factor.cuh"
namespace {
__device__ __forceinline__ int scaled(int value) { return value * kFactor; }
}
extern "C" __global__ void scale(int* values) {
    __shared__ int block[64];
    block[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = scaled(block[63 - threadIdx.x]);
}
"""

ADD = """\
extern "C" __global__ void add(int* values) { values[threadIdx.x] += 1; }
"""

# An array that is indexed at run time cannot stay in registers; with few registers, neither can the sums.
SPILLING = """\
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(const float* in, float* out) {
    float sums[64];
    for (int i = 0; i < 64; ++i) sums[i] = in[i * 1024 + threadIdx.x];
    for (int round = 0; round < 100; ++round)
        for (int i = 0; i < 64; ++i) sums[i] = sums[i] * sums[(i + 1) % 64] + in[round];
    for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = sums[i];
}
"""


def make(root: Path, **sources: str) -> Path:
    """A tree with kernels/include/factor.cuh and these sources; `scale` and `add` by default."""
    for folder in ("src", "include"):
        (root / "kernels" / folder).mkdir(parents=True)
    (root / "kernels" / "include" / "factor.cuh").write_text(HEADER)
    for name, text in (sources or {"scale": SCALE, "add": ADD}).items():
        (root / "kernels" / "src" / f"{name}.cu").write_text(text)
    return root
