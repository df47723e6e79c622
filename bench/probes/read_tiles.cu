// Reads a range once, as fast as memory gives it, to set the ceiling that kernels over planes are held against.
//
// Blocks take 32 KiB tiles: in turn (spans = 0), or each block a run of neighbours (spans = 1); which is faster is
// for the caller to find out. A thread asks for its eight 16-byte words of the next tile before it adds up those of
// this one. The sum of all 32-bit words modulo 2^32 proves that the bytes were read.

#include <cstdint>

constexpr int kThreads = 256;
constexpr int kInFlight = 8;
constexpr uint64_t kTile = kThreads * kInFlight;  // 16-byte words

struct Held {
    uint4 word[kInFlight];
};

__device__ __forceinline__ void load(Held& held, const uint4* words, uint64_t tile, uint64_t count) {
    const uint4* const mine = words + tile * kTile + threadIdx.x;
    const bool whole = (tile + 1) * kTile <= count;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
        held.word[i] = {};
        if (whole || tile * kTile + threadIdx.x + i * kThreads < count)
            asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(held.word[i].x), "=r"(held.word[i].y), "=r"(held.word[i].z), "=r"(held.word[i].w)
                         : "l"(mine + i * kThreads));
    }
}

__device__ __forceinline__ uint32_t sum_of(const Held& held) {
    uint32_t total = 0;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) total += held.word[i].x + held.word[i].y + held.word[i].z + held.word[i].w;
    return total;
}

extern "C" __global__ void __launch_bounds__(kThreads)
read_tiles(const uint4* __restrict__ words, uint64_t count, unsigned int* __restrict__ sum, int spans) {
    const uint64_t tiles = (count + kTile - 1) / kTile;
    const uint64_t run = (tiles + gridDim.x - 1) / gridDim.x;
    const uint64_t step = spans ? 1 : gridDim.x;
    uint64_t tile = spans ? blockIdx.x * run : blockIdx.x;
    const uint64_t end = spans ? min(tiles, tile + run) : tiles;
    uint32_t total = 0;
    Held now, next;
    if (tile < end) load(now, words, tile, count);
    for (; tile < end; tile += step) {
        if (tile + step < end) load(next, words, tile + step, count);
        total += sum_of(now);
        now = next;
    }
    for (int offset = 16; offset; offset >>= 1) total += __shfl_down_sync(0xffffffffu, total, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, total);
}
