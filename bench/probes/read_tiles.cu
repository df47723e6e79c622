// Reads a range once as a GEMM over planes would like to: each block takes whole 32 KiB tiles, in turn.
//
// Eight 16-byte loads a thread are in flight before the first is used. The sum of all 32-bit words modulo 2^32
// proves that the bytes were read.

#include <cstdint>

constexpr int kInFlight = 8;

__device__ __forceinline__ uint4 load(const uint4* address) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

extern "C" __global__ void __launch_bounds__(256)
read_tiles(const uint4* __restrict__ words, uint64_t count, unsigned int* __restrict__ sum) {
    const uint64_t tile = uint64_t(blockDim.x) * kInFlight;
    uint32_t total = 0;
    for (uint64_t base = blockIdx.x * tile; base < count; base += gridDim.x * tile) {
        const uint4* const mine = words + base + threadIdx.x;
        if (base + tile <= count) {
            uint4 held[kInFlight];
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) held[i] = load(mine + i * blockDim.x);
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) total += held[i].x + held[i].y + held[i].z + held[i].w;
        } else {
            for (uint64_t at = base + threadIdx.x; at < count; at += blockDim.x) {
                const uint4 word = load(words + at);
                total += word.x + word.y + word.z + word.w;
            }
        }
    }
    for (int offset = 16; offset; offset >>= 1) total += __shfl_down_sync(0xffffffffu, total, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, total);
}
