// From a tensor of the checkpoint to its place in a layer: planes, FP4 codes of a correction row, and scales.
//
// Bit for bit what codebook.py, planes.py and correction/codes.py do. Codes become planes in two launches, since the
// rule for zeros looks at the whole tensor: moet_count_zeros, then moet_pack_planes, which reads codes that mostly
// still lie in the L2 cache. Every sum is one of integers, so the result does not depend on the order of blocks.
//
// A warp makes one tile of 16 rows x 128 columns. A row of it is 64 bytes of the source, and lane (g, t) loads the 16
// of scale block t in rows g and g + 8. A word is eight codes, the columns that one lane of the GEMM reads:
//
//        loaded by lane (g, t)       word i: rows g and g + 8, block t, columns 8i .. 8i + 7
//        wanted in lane (g, t)       word j: rows g and g + 8, block j, columns 8t .. 8t + 7
//
// So each lane turns what it loaded into words of the layout, the four lanes of g transpose, and the warp writes 512
// bytes at a time. The codes of a source word are nibbles 2q + h, so byte q is the pair q of the layout's picture.
//
// Grids are one-dimensional, blocks have 256 threads. moet_count_zeros: any number of blocks. moet_pack_planes and
// moet_pack_fp4: a warp a tile. moet_pack_scales: a thread for each 16 bytes.

#include "../include/chain.cuh"
#include "../include/quantize_params.cuh"

namespace {

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int LOADS = 4;  // of 16 bytes that a counting thread has in flight
constexpr uint32_t FULL = 0xFFFFFFFF;

// 1 in every nibble whose magnitude is zero.
__device__ __forceinline__ uint32_t zeros(uint32_t codes) { return ~(codes | codes >> 1 | codes >> 2) & 0x11111111; }

// Both numbers summed over the block, in every thread.
__device__ __forceinline__ uint2 block_sum(uint32_t first, uint32_t second) {
    __shared__ uint2 parts[WARPS];
    first = __reduce_add_sync(FULL, first);
    second = __reduce_add_sync(FULL, second);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {first, second};
    __syncthreads();
    uint2 sum = {0, 0};
#pragma unroll
    for (const uint2& part : parts) {
        sum.x += part.x;
        sum.y += part.y;
    }
    return sum;
}

// Whether over 95% of the tensor's zeros carry one sign.
__device__ __forceinline__ bool zeros_say_nothing(const moet::ZeroCounts* counts, int blocks) {
    uint32_t zero = 0, negative = 0;
#pragma unroll 1  // seldom more than once
    for (int i = threadIdx.x; i < blocks; i += THREADS) {
        const uint2 part = reinterpret_cast<const uint2*>(counts)[i];
        zero += part.x;
        negative += part.y;
    }
    const uint2 sum = block_sum(zero, negative);
    return 20 * uint64_t(max(sum.y, sum.x - sum.y)) > 19 * uint64_t(sum.x);
}

// The four lanes of a g as a 4 x 4 matrix of words, a lane a row.
__device__ __forceinline__ void transpose(uint32_t (&w)[4], int t) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = t & bit;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const int low = bit == 1 ? 2 * pair : pair, high = low + bit;
            const uint32_t got = __shfl_xor_sync(FULL, upper ? w[low] : w[high], bit);
            (upper ? w[low] : w[high]) = got;
        }
    }
}

// One word of a plane from the codes of row g and row g + 8.
__device__ __forceinline__ uint32_t plane_word(uint32_t g, uint32_t h) {
    // Magnitudes 3, 4 and 6 are codes 5, 6 and 7.
    const uint32_t large_g = g >> 2 & (g >> 1 | g) & 0x11111111, large_h = h >> 2 & (h >> 1 | h) & 0x11111111;
    // In the source's order of pairs: signs are in place, magnitudes belong one and two pairs further.
    const uint32_t bits = (g & 0x88888888) | (h & 0x88888888) >> 2 | __funnelshift_l(large_g, large_g, 8) |
                          __funnelshift_l(large_h, large_h, 18);
    // Nibble 2q + h goes to nibble 3 - q of half h: within two bytes first, then bytes.
    const uint32_t mixed = (bits & 0x0FF00FF0) | (bits << 12 & 0xF000F000) | (bits >> 12 & 0x000F000F);
    return __byte_perm(mixed, 0, 0x0213);
}

struct Tile {
    uint4 upper, lower;  // codes of rows g and g + 8, of one scale block
};

// What lane (g, t) loads of a tile.
__device__ __forceinline__ Tile load(const moet::PackParams& p, int tile, int lane) {
    const int tile_n = tile / p.tiles_k, tile_k = tile - tile_n * p.tiles_k;
    const uint8_t* row = p.source + (tile_n * 16 + lane / 4) * p.row_bytes + tile_k * 64 + lane % 4 * 16;
    return {__ldg(reinterpret_cast<const uint4*>(row)), __ldg(reinterpret_cast<const uint4*>(row + 8 * p.row_bytes))};
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) moet_count_zeros(const __grid_constant__ moet::CountParams p) {
    moet::release();
    const auto* vectors = reinterpret_cast<const uint4*>(p.codes);
    uint32_t zero = 0, negative = 0;
    for (int64_t first = int64_t(blockIdx.x) * (LOADS * THREADS) + threadIdx.x; first < p.vectors;
         first += int64_t(gridDim.x) * (LOADS * THREADS)) {
        uint4 loaded[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int64_t index = first + i * THREADS;
            loaded[i] = {FULL, FULL, FULL, FULL};  // no zeros
            if (index < p.vectors) loaded[i] = __ldg(vectors + index);
        }
#pragma unroll
        for (const uint4& v : loaded) {
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (const uint32_t word : words) {
                const uint32_t flags = zeros(word);
                zero += __popc(flags);
                negative += __popc(flags & word >> 3);
            }
        }
    }
    const uint2 sum = block_sum(zero, negative);
    if (threadIdx.x == 0) p.counts[blockIdx.x] = {sum.x, sum.y};
}

extern "C" __global__ void __launch_bounds__(THREADS) moet_pack_planes(const __grid_constant__ moet::PackParams p) {
    const int tile = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool any = tile < p.tiles_n * p.tiles_k;
    Tile in = {};
    if (any) in = load(p, tile, lane);
    moet::depend();  // the codes were complete before the counting began, the counts are from here on
    const bool rewrite = zeros_say_nothing(p.counts, p.count_blocks);
    if (!any) return;
    // Zeros are positive where row + column is even; the row's parity is g's, the column's that of the nibble.
    const uint32_t negative = lane / 4 % 2 ? 0x01010101 : 0x10101010;
    const uint32_t upper[4] = {in.upper.x, in.upper.y, in.upper.z, in.upper.w};
    const uint32_t lower[4] = {in.lower.x, in.lower.y, in.lower.z, in.lower.w};
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t g = upper[i], h = lower[i];
        if (rewrite) {
            const uint32_t zero_g = zeros(g), zero_h = zeros(h);
            g = (g & ~(zero_g << 3)) | (zero_g & negative) << 3;
            h = (h & ~(zero_h << 3)) | (zero_h & negative) << 3;
        }
        words[i] = plane_word(g, h);
    }
    transpose(words, lane % 4);
    __stcs(reinterpret_cast<uint4*>(p.out) + int64_t(tile) * 32 + lane, {words[0], words[1], words[2], words[3]});
}

extern "C" __global__ void __launch_bounds__(THREADS) moet_pack_fp4(const __grid_constant__ moet::PackParams p) {
    const int tile = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (tile >= p.tiles_n * p.tiles_k) return;
    const Tile in = load(p, tile, lane);
    const uint32_t upper[4] = {in.upper.x, in.upper.y, in.upper.z, in.upper.w};
    const uint32_t lower[4] = {in.lower.x, in.lower.y, in.lower.z, in.lower.w};
    uint32_t first[4], second[4];  // words of step 0 and of step 1
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // Byte q: both rows' code of pair q, of half 0 and of half 1.
        const uint32_t even = (upper[i] & 0x0F0F0F0F) | (lower[i] & 0x0F0F0F0F) << 4;
        const uint32_t odd = (upper[i] >> 4 & 0x0F0F0F0F) | (lower[i] & 0xF0F0F0F0);
        first[i] = __byte_perm(even, odd, 0x5410);
        second[i] = __byte_perm(even, odd, 0x7632);
    }
    transpose(first, lane % 4);
    transpose(second, lane % 4);
    auto* out = reinterpret_cast<uint4*>(p.out) + int64_t(tile) * 64 + lane;  // two tiles of 64 columns
    __stcs(out, {first[0], second[0], first[1], second[1]});
    __stcs(out + 32, {first[2], second[2], first[3], second[3]});
}

extern "C" __global__ void __launch_bounds__(THREADS) moet_pack_scales(const __grid_constant__ moet::PackParams p) {
    const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    const int tile = int(index / 4), g = int(index % 4) * 2;  // four times 16 bytes a tile, of rows g and g + 1
    if (tile >= p.tiles_n * p.tiles_k) return;
    const int tile_n = tile / p.tiles_k, tile_k = tile - tile_n * p.tiles_k;
    const uint8_t* source = p.source + (tile_n * 16 + g) * p.row_bytes + tile_k * 4;
    const auto four = [&](int row) { return __ldg(reinterpret_cast<const uint32_t*>(source + row * p.row_bytes)); };
    __stcs(reinterpret_cast<uint4*>(p.out) + index, {four(0), four(8), four(1), four(9)});
}
