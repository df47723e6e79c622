// The two instructions that only the block-scaled variant uses (decode_bs.cu). sm_120a alone has the first.

#pragma once

#include <cstdint>

namespace moet {

// d += (a * scale_a) * (b * scale_b), 16 x 8 x 32, e4m3 with one UE8M0 scale for each row of a and each column of b
// (PTX ISA, "Block Scaling for mma.sync"). Byte `Byte` of a lane's scale registers is taken, and of each four lanes
// the first two give the scales of a's rows g and g + 8, the first that of b's column g.
template <int Byte>
__device__ __forceinline__ void mma_block_scaled(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                                 uint32_t scales_a, uint32_t scales_b) {
    asm("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12,%13}, {%11}, {%12,%13};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scales_a), "r"(scales_b), "n"(Byte),
          "n"(0));
}

// Two numbers rounded to e4m3, to the nearest and to an even last bit; what is too large becomes +-448.
__device__ __forceinline__ uint32_t to_e4m3_pair(float low, float high) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

}  // namespace moet
