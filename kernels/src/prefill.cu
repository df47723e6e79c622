// Both expert GEMMs for many tokens an expert: each weight byte is read once for up to 64 tokens.
//
// A work item is 32 row tiles of one entry, four a warp: two of gate rows with their two of up rows (first GEMM), or
// 4 x 16 output rows (second). Weights go straight from memory into a warp's registers, one load ahead (layout.cuh).
// The block shares the activations, which arrive 128 columns at a time:
//
//     shared memory            stage 0          stage 1          stage 2
//     column tile n            computed on      arrives          free until all warps are past tile n - 1,
//                                                                then asked for: tile n + 2
//     a stage                  [64 tokens][128 columns + 32] bfloat16: 16-byte reads of eight lanes, two tokens
//                              apart by 320 bytes, meet all 32 banks once
//
// At the end of an item the same memory takes the outputs, so that they leave in whole 16-byte words.
//
// Threads: 256. Dynamic shared memory: 3 stages, 61,440 bytes.

#include "../include/chain.cuh"
#include "../include/copies.cuh"
#include "../include/mma.cuh"
#include "../include/params.cuh"

namespace moet {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRowTiles = 4;  // of a warp: two of them, and the activations would be read twice as often
constexpr int kTokens = 64;
constexpr int kTokenTiles = kTokens / 8;
constexpr int kStages = 3;
constexpr int kStageRow = 128 + 32;  // bfloat16
constexpr int kStage = kTokens * kStageRow;
constexpr int kTileBytes = 512;
constexpr int kCopies = kTokens * 16 / kThreads;  // 16-byte pieces of a stage for each thread

__device__ __forceinline__ uint4 at(const uint16_t* stage, int token, int column) {
    return *reinterpret_cast<const uint4*>(stage + token * kStageRow + column);
}

// One scale block: 16 x 32 weights of each row tile against all tokens.
__device__ __forceinline__ void block_mma(float (&acc)[kRowTiles][kTokenTiles][4], const A2 (&a)[kRowTiles],
                                          const uint16_t* stage, int column, int g, int token_tiles) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
        if (nt >= token_tiles) break;
        const uint4 b = at(stage, nt * 8 + g, column);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) mma(acc[m][nt], a[m].step[0], b.x, b.y);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) mma(acc[m][nt], a[m].step[1], b.z, b.w);
    }
}

__device__ __forceinline__ uint32_t word_of(const uint4& words, int index) {
    return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// First GEMM: activate, and leave through shared memory in whole 16-byte words.
__device__ __forceinline__ void store_inner(const GemmParams& p, const Entry& entry, int block,
                                            float (&acc)[kRowTiles][kTokenTiles][4], uint16_t* shared, bool active,
                                            int token_tiles) {
    constexpr int kPairs = kRowTiles / 2, kColumns = kWarps * kPairs * 16;  // outputs of a token
    constexpr int kRow = kColumns + 8;                                    // keeps 16-byte alignment and spreads banks
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float unscale = entry.fp4 ? kFp4Scale : 1.0f;
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
        if (nt >= token_tiles || !active) break;
#pragma unroll
        for (int m = 0; m < kPairs; ++m) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float gate = acc[m][nt][c] * unscale, up = acc[m + kPairs][nt][c] * unscale;
                const int row = (warp * kPairs + m) * 16 + g + 8 * (c >> 1);
                shared[(nt * 8 + 2 * t + (c & 1)) * kRow + row] = to_bf16(clamped_swiglu(gate, up, p.limit));
            }
        }
    }
    __syncthreads();
    const int words = min(kColumns, p.out_cols - block * kColumns) / 8;
    for (int i = threadIdx.x; i < entry.count * (kColumns / 8); i += kThreads) {
        const int token = i / (kColumns / 8), word = i % (kColumns / 8);
        if (word >= words) continue;
        const int64_t to = int64_t(entry.first + token) * p.out_cols + block * kColumns + word * 8;
        *reinterpret_cast<uint4*>(p.inner + to) = *reinterpret_cast<const uint4*>(shared + token * kRow + word * 8);
    }
    __syncthreads();
}

// Second GEMM: weigh, and store 32 bytes of a token at a time; a lane's neighbours along g hold the next rows.
__device__ __forceinline__ void store_routed(const GemmParams& p, const Entry& entry, int block,
                                             float (&acc)[kRowTiles][kTokenTiles][4], bool active, int token_tiles) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float unscale = entry.fp4 ? kFp4Scale : 1.0f;
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; ++nt) {
        if (nt >= token_tiles || !active) break;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int token = nt * 8 + 2 * t + odd;
            if (token >= entry.count) continue;
            const int route = p.routes[entry.first + token];
            const float weight = p.weights[route] * unscale;
            float* const to = p.routed + int64_t(route) * p.out_cols + (block * kWarps + warp) * kRowTiles * 16 + g;
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
                to[m * 16] = acc[m][nt][odd] * weight;
                to[m * 16 + 8] = acc[m][nt][2 + odd] * weight;
            }
        }
    }
    __syncthreads();
}

template <bool First>
__device__ __forceinline__ void prefill(const GemmParams& p) {
    extern __shared__ uint16_t shared[];
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int kOuts = First ? kRowTiles / 2 : kRowTiles;  // row tiles of a warp's outputs
    const int row_tiles = p.out_cols / 16, blocks = (row_tiles + kWarps * kOuts - 1) / (kWarps * kOuts);
    const int col_tiles = p.cols / 128;
    depend();
    release();
    const int items = p.header[0] * blocks;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const Entry& entry = p.entries[item / blocks];
        const int block = item % blocks, row = (block * kWarps + warp) * kOuts, token_tiles = (entry.count + 7) / 8;
        const bool active = row < row_tiles;
        int from[kCopies];  // where a thread's pieces of the activations begin, in elements; negative = none
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int token = threadIdx.x / 16 + i * (kThreads / 16);
            from[i] = -1;
            if (token < entry.count) {
                const int row = First ? p.routes[entry.first + token] / p.top_k : entry.first + token;
                from[i] = row * p.cols + threadIdx.x % 16 * 8;
            }
        }
        const auto ask = [&](int tile) {
            const uint32_t to = shared_address(shared + tile % kStages * kStage + threadIdx.x / 16 * kStageRow +
                                               threadIdx.x % 16 * 8);
#pragma unroll
            for (int i = 0; i < kCopies; ++i)
                if (from[i] >= 0 && tile < col_tiles)
                    copy_async(to + i * (kThreads / 16) * kStageRow * 2, p.x + from[i] + tile * 128);
            commit_copies();
        };

        const int units = entry.fp4 ? 2 * col_tiles : col_tiles;
        const int row_bytes = units * kTileBytes, scale_bytes = col_tiles * 64, from_row = active ? row : 0;
        const auto* const weights = reinterpret_cast<const uint8_t*>(First ? entry.weights13 : entry.weights2) +
                                    int64_t(from_row) * row_bytes + lane * 16;
        const auto* const scales = reinterpret_cast<const uint8_t*>(First ? entry.scales13 : entry.scales2) +
                                   int64_t(from_row) * scale_bytes + g * 8;
        // Row tile m of a warp, from its first one: the up projection's tiles follow all of the gate's.
        const auto tile_of = [&](int m) { return m % kOuts + (m < kOuts ? 0 : row_tiles); };
        uint4 words[kRowTiles], coming[kRowTiles];
        uint2 scale[kRowTiles], coming_scale[kRowTiles];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
            coming[m] = load_stream(weights + tile_of(m) * row_bytes);
            coming_scale[m] = load_stream8(scales + tile_of(m) * scale_bytes);
        }
        float acc[kRowTiles][kTokenTiles][4] = {};
#pragma unroll
        for (int tile = 0; tile < kStages - 1; ++tile) ask(tile);
        for (int tile = 0; tile < col_tiles; ++tile) {
            wait_for_copies<kStages - 2>();
            __syncthreads();
            ask(tile + kStages - 1);
            const uint16_t* const stage = shared + tile % kStages * kStage + 8 * t;
            for (int half = 0; half <= entry.fp4; ++half) {
#pragma unroll
                for (int m = 0; m < kRowTiles; ++m) {
                    words[m] = coming[m];
                    if (half == 0) scale[m] = coming_scale[m];
                }
                const int next = entry.fp4 ? 2 * tile + half + 1 : tile + 1;
                if (next < units) {
#pragma unroll
                    for (int m = 0; m < kRowTiles; ++m) {
                        coming[m] = load_stream(weights + (tile_of(m) * row_bytes + next * kTileBytes));
                        if (half == entry.fp4)
                            coming_scale[m] = load_stream8(scales + (tile_of(m) * scale_bytes + (tile + 1) * 64));
                    }
                }
                if (!entry.fp4) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        A2 a[kRowTiles];
#pragma unroll
                        for (int m = 0; m < kRowTiles; ++m)
                            a[m] = w2_block(word_of(words[m], j), exponent_pair(byte_of(scale[m].x, j), 0),
                                            exponent_pair(byte_of(scale[m].y, j), 0));
                        block_mma(acc, a, stage, 32 * j, g, token_tiles);
                    }
                } else {
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        A2 a[kRowTiles];
#pragma unroll
                        for (int m = 0; m < kRowTiles; ++m) {
                            const int shift = 8 * (2 * half + j);
                            a[m] = fp4_block(word_of(words[m], 2 * j), word_of(words[m], 2 * j + 1),
                                             exponent_pair(scale[m].x >> shift & 255, kFp4Bias),
                                             exponent_pair(scale[m].y >> shift & 255, kFp4Bias));
                        }
                        block_mma(acc, a, stage, 64 * half + 32 * j, g, token_tiles);
                    }
                }
            }
        }
        wait_for_copies<0>();
        if (First)
            store_inner(p, entry, block, acc, shared, active, token_tiles);
        else
            store_routed(p, entry, block, acc, active, token_tiles);
    }
}

}  // namespace
}  // namespace moet

extern "C" __global__ void __launch_bounds__(moet::kThreads, 1) moet_prefill13(const __grid_constant__ moet::GemmParams p) {
    moet::prefill<true>(p);
}

extern "C" __global__ void __launch_bounds__(moet::kThreads, 1) moet_prefill2(const __grid_constant__ moet::GemmParams p) {
    moet::prefill<false>(p);
}
