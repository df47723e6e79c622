// Both expert GEMMs for many tokens an expert: each weight byte is read once for up to 64 tokens.
//
// A work item is eight pairs of row tiles of one entry, one pair a warp: gate rows with their up rows (first
// GEMM), or 2 x 16 output rows (second). Weights go straight from memory into a warp's registers, one unit ahead
// (layout.cuh). The block shares the activations, which arrive 128 columns at a time:
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
#include "../include/mma.cuh"
#include "../include/params.cuh"

namespace moet {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTokens = 64;
constexpr int kTokenTiles = kTokens / 8;
constexpr int kStages = 3;
constexpr int kStageRow = 128 + 32;  // bfloat16
constexpr int kStage = kTokens * kStageRow;
constexpr int kTileBytes = 512;
constexpr int kCopies = kTokens * 16 / kThreads;  // 16-byte pieces of a stage for each thread

__device__ __forceinline__ void copy_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Pending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

__device__ __forceinline__ uint4 at(const uint16_t* stage, int token, int column) {
    return *reinterpret_cast<const uint4*>(stage + token * kStageRow + column);
}

// One scale block: 16 x 32 weights of two row tiles against all tokens.
__device__ __forceinline__ void block_mma(float (&acc)[2][kTokenTiles][4], const A2 (&a)[2], const uint16_t* stage,
                                          int column, int g, int token_tiles) {
#pragma unroll
    for (int nt = 0; nt < kTokenTiles; nt += 2) {
        if (nt >= token_tiles) break;
        const uint4 b[2] = {at(stage, nt * 8 + g, column), at(stage, nt * 8 + 8 + g, column)};
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            mma(acc[m][nt], a[m].step[0], b[0].x, b[0].y);
            mma(acc[m][nt + 1], a[m].step[0], b[1].x, b[1].y);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            mma(acc[m][nt], a[m].step[1], b[0].z, b[0].w);
            mma(acc[m][nt + 1], a[m].step[1], b[1].z, b[1].w);
        }
    }
}

template <bool First>
__device__ __forceinline__ void store(const GemmParams& p, const Entry& entry, int block, float (&acc)[2][kTokenTiles][4],
                                      uint16_t* shared, bool active, int token_tiles) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float unscale = entry.fp4 ? kFp4Scale : 1.0f;
    if (First) {
        constexpr int kRow = kWarps * 16 + 8;  // 128 outputs a token; the 8 keep 16-byte alignment and spread banks
        __syncthreads();
#pragma unroll
        for (int nt = 0; nt < kTokenTiles; ++nt) {
            if (nt >= token_tiles || !active) break;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float inner = clamped_swiglu(acc[0][nt][c] * unscale, acc[1][nt][c] * unscale, p.limit);
                shared[(nt * 8 + 2 * t + (c & 1)) * kRow + warp * 16 + g + 8 * (c >> 1)] = to_bf16(inner);
            }
        }
        __syncthreads();
        const int columns = min(kWarps * 16, p.out_cols - block * kWarps * 16) / 8;
        for (int i = threadIdx.x; i < entry.count * 16; i += kThreads) {
            const int token = i / 16, column = i % 16;
            if (column >= columns) continue;
            const uint4 word = *reinterpret_cast<const uint4*>(shared + token * kRow + column * 8);
            const int64_t to = int64_t(entry.first + token) * p.out_cols + block * kWarps * 16 + column * 8;
            *reinterpret_cast<uint4*>(p.inner + to) = word;
        }
    } else {
        // 32 bytes of a token at a time: a lane's neighbours along g hold the next rows.
#pragma unroll
        for (int nt = 0; nt < kTokenTiles; ++nt) {
            if (nt >= token_tiles || !active) break;
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int token = nt * 8 + 2 * t + odd;
                if (token >= entry.count) continue;
                const int route = p.routes[entry.first + token];
                const float weight = p.weights[route] * unscale;
                float* const to = p.routed + int64_t(route) * p.out_cols + (block * kWarps + warp) * 32 + g;
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    to[m * 16] = acc[m][nt][odd] * weight;
                    to[m * 16 + 8] = acc[m][nt][2 + odd] * weight;
                }
            }
        }
    }
    __syncthreads();
}

template <bool First>
__device__ __forceinline__ void prefill(const GemmParams& p) {
    extern __shared__ uint16_t shared[];
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int pairs = p.out_cols / (First ? 16 : 32), blocks = (pairs + kWarps - 1) / kWarps, col_tiles = p.cols / 128;
    depend();
    release();
    const int items = p.header[0] * blocks;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const Entry& entry = p.entries[item / blocks];
        const int block = item % blocks, pair = block * kWarps + warp, token_tiles = (entry.count + 7) / 8;
        const bool active = pair < pairs;
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
            uint16_t* const to = shared + tile % kStages * kStage + threadIdx.x / 16 * kStageRow + threadIdx.x % 16 * 8;
#pragma unroll
            for (int i = 0; i < kCopies; ++i)
                if (from[i] >= 0 && tile < col_tiles)
                    copy_async(to + i * (kThreads / 16) * kStageRow, p.x + from[i] + tile * 128);
            commit_copies();
        };

        const int units = entry.fp4 ? 2 * col_tiles : col_tiles;
        const int row = !active ? 0 : First ? pair : 2 * pair, apart = First ? pairs : 1;  // in row tiles
        const auto* const weights = reinterpret_cast<const uint8_t*>(First ? entry.weights13 : entry.weights2) +
                                    int64_t(row) * units * kTileBytes + lane * 16;
        const auto* const scales = reinterpret_cast<const uint8_t*>(First ? entry.scales13 : entry.scales2) +
                                   int64_t(row) * col_tiles * 64 + g * 8;
        const int weights_apart = apart * units * kTileBytes, scales_apart = apart * col_tiles * 64;
        uint4 words[2], coming[2];
        uint2 scale[2], coming_scale[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            coming[m] = load_stream(weights + m * weights_apart);
            coming_scale[m] = load_stream8(scales + m * scales_apart);
        }
        float acc[2][kTokenTiles][4] = {};
#pragma unroll
        for (int tile = 0; tile < kStages - 1; ++tile) ask(tile);
        for (int tile = 0; tile < col_tiles; ++tile) {
            wait_for_copies<kStages - 2>();
            __syncthreads();
            ask(tile + kStages - 1);
            const uint16_t* const stage = shared + tile % kStages * kStage + 8 * t;
            for (int half = 0; half <= entry.fp4; ++half) {
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    words[m] = coming[m];
                    if (half == 0) scale[m] = coming_scale[m];
                }
                const int next = entry.fp4 ? 2 * tile + half + 1 : tile + 1;
                if (next < units) {
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        coming[m] = load_stream(weights + (m * weights_apart + next * kTileBytes));
                        if (half == entry.fp4) coming_scale[m] = load_stream8(scales + (m * scales_apart + (tile + 1) * 64));
                    }
                }
                if (!entry.fp4) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        A2 a[2];
#pragma unroll
                        for (int m = 0; m < 2; ++m) {
                            const uint4& w = words[m];
                            a[m] = w2_block(j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w,
                                            exponent_pair(byte_of(scale[m].x, j)), exponent_pair(byte_of(scale[m].y, j)));
                        }
                        block_mma(acc, a, stage, 32 * j, g, token_tiles);
                    }
                } else {
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        A2 a[2];
#pragma unroll
                        for (int m = 0; m < 2; ++m) {
                            const uint4& w = words[m];
                            const int at = 8 * (2 * half + j);
                            a[m] = fp4_block(j == 0 ? w.x : w.z, j == 0 ? w.y : w.w, scale[m].x >> at & 255,
                                             scale[m].y >> at & 255);
                        }
                        block_mma(acc, a, stage, 64 * half + 32 * j, g, token_tiles);
                    }
                }
            }
        }
        wait_for_copies<0>();
        store<First>(p, entry, block, acc, shared, active, token_tiles);
    }
}

}  // namespace
}  // namespace moet

extern "C" __global__ void __launch_bounds__(moet::kThreads, 2) moet_prefill13(const __grid_constant__ moet::GemmParams p) {
    moet::prefill<true>(p);
}

extern "C" __global__ void __launch_bounds__(moet::kThreads, 2) moet_prefill2(const __grid_constant__ moet::GemmParams p) {
    moet::prefill<false>(p);
}
