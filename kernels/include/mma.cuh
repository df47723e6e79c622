// Matrix operands from planes and FP4 codes (layout.cuh has the picture), and the instruction that takes them.

#pragma once

#include <cstdint>

namespace moet {

constexpr uint32_t kFp4Bias = 63 * 0x00800080u;  // 2^63, see fp4_block
constexpr float kFp4Scale = 0x1p63f;             // what fp4_block leaves out of its operands

struct A2 {
    uint32_t step[2][4];  // operand A of the two instructions of one scale block
};

// Two bfloat16 with the exponent of a UE8M0 byte and nothing else; `bias` is such a pair to add to it.
__device__ __forceinline__ uint32_t exponent_pair(uint32_t byte, uint32_t bias) {
    uint32_t pair;
    asm("mad.lo.u32 %0, %1, 0x00800080, %2;" : "=r"(pair) : "r"(byte), "r"(bias));
    return pair;
}

__device__ __forceinline__ uint32_t byte_of(uint32_t word, int index) { return __byte_perm(word, 0, 0x4440 | index); }

// (word & Mask) * Factor + add, as one AND and one multiply-add. Written in PTX because the compiler would rather
// shift, mask and add: three instructions, two of them on the pipe that is short here.
template <uint32_t Mask, int Factor>
__device__ __forceinline__ uint32_t pick(uint32_t word, uint32_t add) {
    uint32_t picked = word & Mask;
    asm("mad.lo.u32 %0, %0, %1, %2;" : "+r"(picked) : "n"(Factor), "r"(add));
    return picked;
}

// One word of a plane and the exponents of its two rows: 16 weights with their scale.
__device__ __forceinline__ A2 w2_block(uint32_t word, uint32_t low, uint32_t high) {
    const uint32_t swapped = __byte_perm(word, 0, 0x2301);
    A2 a;
    a.step[0][0] = pick<0x81008100u, 1>(word, low);
    a.step[0][1] = pick<0x20402040u, 4>(word, high);
    a.step[0][2] = pick<0x08100810u, 16>(word, low);
    a.step[0][3] = pick<0x02040204u, 64>(word, high);
    a.step[1][0] = pick<0x00810081u, 256>(word, low);
    a.step[1][1] = pick<0x20402040u, 4>(swapped, high);
    a.step[1][2] = pick<0x08100810u, 16>(swapped, low);
    a.step[1][3] = pick<0x02040204u, 64>(swapped, high);
    return a;
}

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z;}" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// One word of FP4 codes: four pairs. e2m1 bits under a bfloat16's sign and lowest exponent bits are that number
// times 2^-126, subnormals and zero included (both formats continue below their first exponent in the same way).
__device__ __forceinline__ void fp4_step(uint32_t word, uint32_t low, uint32_t high, uint32_t (&a)[4]) {
    a[0] = multiply_bf16x2(((word << 12) & 0x80008000u) | ((word << 6) & 0x01C001C0u), low);
    a[1] = multiply_bf16x2(((word << 8) & 0x80008000u) | ((word << 2) & 0x01C001C0u), high);
    a[2] = multiply_bf16x2(((word << 4) & 0x80008000u) | ((word >> 2) & 0x01C001C0u), low);
    a[3] = multiply_bf16x2((word & 0x80008000u) | ((word >> 6) & 0x01C001C0u), high);
}

// Both steps of a scale block. `low` and `high` are the exponent pairs of the rows' scales with kFp4Bias: 2^63 too
// large, while 2^-126 comes with the codes. So operands are 2^-63 of the weights, for scale bytes 64 .. 191, and
// kFp4Scale mends the sums.
__device__ __forceinline__ A2 fp4_block(uint32_t first, uint32_t second, uint32_t low, uint32_t high) {
    A2 a;
    fp4_step(first, low, high, a.step[0]);
    fp4_step(second, low, high, a.step[1]);
    return a;
}

// d += a * b, 16 x 8 x 16 (PTX ISA, mma.m16n8k16).
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float clamped_swiglu(float gate, float up, float limit) {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

__device__ __forceinline__ uint16_t to_bf16(float value) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Read once, keep out of the first-level cache.
__device__ __forceinline__ uint4 load_stream(const void* address) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

__device__ __forceinline__ uint2 load_stream8(const void* address) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
    return v;
}

}  // namespace moet
