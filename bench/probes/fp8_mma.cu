// One e4m3 matrix instruction and the bfloat16 one beside it: what does each become on an architecture?
//
// bench/kernels.py activations --sass compiles this and lists the matrix instructions in the machine code.

#include <cstdint>

extern "C" __global__ void fp8_mma(const uint32_t* a, const uint32_t* b, float* d) {
    float c[4] = {};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = c[i];
}

extern "C" __global__ void bf16_mma(const uint32_t* a, const uint32_t* b, float* d) {
    float c[4] = {};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = c[i];
}
