// Reads every byte of a range once and adds it up, as fast as memory gives it.
//
// The sum of all 32-bit words modulo 2^64 proves that the bytes were read and were the right ones; integer
// addition makes it independent of order. Eight 16-byte loads a thread are in flight before the first is used.

#include <cstdint>

constexpr int kInFlight = 8;

extern "C" __global__ void __launch_bounds__(256)
read_sum(const uint4* __restrict__ words, uint64_t count, unsigned long long* __restrict__ sum) {
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    uint64_t index = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t total = 0;
    for (; index + (kInFlight - 1) * stride < count; index += kInFlight * stride) {
        uint4 held[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) held[i] = __ldcs(words + index + i * stride);
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) total += uint64_t(held[i].x) + held[i].y + held[i].z + held[i].w;
    }
    for (; index < count; index += stride) {
        const uint4 word = __ldcs(words + index);
        total += uint64_t(word.x) + word.y + word.z + word.w;
    }
    for (int offset = 16; offset; offset >>= 1) total += __shfl_down_sync(0xffffffffu, total, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, total);
}
