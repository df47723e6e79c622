// e4m3 operands of the block-scaled instruction from planes, FP4 codes and activations (layout.cuh has their picture).
//
// mma.m16n8k32 asks lane (g, t) for rows g and g + 8 of A, and for column g of B, at eight of the 32 columns of a
// scale block, in two steps of four bytes. Which of the block's columns those are is free as long as B agrees, so a
// lane keeps its columns 8t .. 8t+7, in the order in which one AND gives four bytes of a plane's word:
//
//        byte of the operand         0         1         2         3
//        step 0, column              4         0         5         1        q = 2, 0, 2, 0   h = 0, 0, 1, 1
//        step 1, column              6         2         7         3        q = 3, 1, 3, 1   h = 0, 0, 1, 1
//
// The scales need no work at all: byte j of the word at 8 g + 4 * (row >= 8) is that of scale block j, and the
// instruction picks it by number.

#pragma once

#include <cstdint>

#include "mma_bs.cuh"

namespace moet {

struct Fragment {
    uint32_t a[4];  // row g at step 0, row g + 8 at step 0, row g at step 1, row g + 8 at step 1
};

// Signs and magnitude bits of four weights at their places in e4m3, 0x38 = 1: +-1, or +-4 where bit 4 is set.
__device__ __forceinline__ uint32_t e4m3_of(uint32_t signs, uint32_t magnitudes) {
    return (signs & 0x80808080u) | (0x38383838u + (magnitudes & 0x10101010u));
}

// One word of a plane: the lane's 16 weights of a scale block. Signs of columns with q = 0 and 1 lie in the upper
// byte of a half, q = 2 and 3 in the lower; so do the magnitude bits of row g at step 0, all others the other way.
__device__ __forceinline__ Fragment plane_fragment(uint32_t word) {
    const uint32_t swapped = __byte_perm(word, 0, 0x2301);
    return {{e4m3_of(word, word << 4), e4m3_of(word << 2, swapped >> 2), e4m3_of(word << 4, swapped),
             e4m3_of(word << 6, swapped << 2)}};
}

constexpr float kFp4OperandScale = 64;  // what fp4_fragment leaves out of its operands

// Four e2m1 codes, in the low nibbles. Under e4m3's sign and lowest exponent bits they are that number times 2^-6,
// subnormals and zero included (both formats continue below their first exponent in the same way).
__device__ __forceinline__ uint32_t e4m3_of_codes(uint32_t codes) {
    return ((codes << 4) & 0x80808080u) | ((codes << 2) & 0x1C1C1C1Cu);
}

// Both words of FP4 codes of a scale block. A byte holds the codes of rows g and g + 8 of one column.
__device__ __forceinline__ Fragment fp4_fragment(uint32_t first, uint32_t second) {
    const uint32_t step0 = __byte_perm(first, second, 0x2604), step1 = __byte_perm(first, second, 0x3715);
    return {{e4m3_of_codes(step0), e4m3_of_codes(step0 >> 4), e4m3_of_codes(step1), e4m3_of_codes(step1 >> 4)}};
}

// The greatest magnitude of eight bfloat16, as its bits without the sign.
__device__ __forceinline__ uint32_t magnitude_of(const uint4& x) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t most = 0;
#pragma unroll
    for (uint32_t word : words) most = max(most, max(word & 0x7FFFu, word >> 16 & 0x7FFFu));
    return most;
}

// The UE8M0 scale of a block of activations whose greatest magnitude has these bfloat16 bits: magnitude / 448 rounded
// up to a power of two, 448 = 1.75 * 2^8 being e4m3's greatest number. An infinity or a NaN makes its block NaN.
__device__ __forceinline__ uint32_t activation_scale(uint32_t magnitude) {
    if (magnitude >= 0x7F80u) return 255;
    const uint32_t exponent = (magnitude + 0x1Fu) >> 7;  // one more where the fraction is above 1.75
    return exponent > 8 ? exponent - 8 : 0;
}

// A lane's eight bfloat16 of a block over the block's scale: operand B.
__device__ __forceinline__ void activation_fragment(const uint4& x, uint32_t scale, uint32_t (&b)[2]) {
    const float inverse = __uint_as_float((254 - scale) << 23);
    const auto pair = [&](uint32_t low, uint32_t high, int shift) {
        return to_e4m3_pair(__uint_as_float((low << shift) & 0xFFFF0000u) * inverse,
                            __uint_as_float((high << shift) & 0xFFFF0000u) * inverse);
    };
    b[0] = pair(x.z, x.x, 16) | pair(x.z, x.x, 0) << 16;
    b[1] = pair(x.w, x.y, 16) | pair(x.w, x.y, 0) << 16;
}

}  // namespace moet
