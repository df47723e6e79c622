// Both expert GEMMs for up to eight tokens an expert with the block-scaled matrix instruction of SM120.
//
// UNVALIDATED: compiled for sm_120a and computed on a CPU thread by thread, but never run on such a chip. Off by
// default; VLLM_MOE_W2_BLOCK_SCALED=1 puts these kernels in the place of moet_decode13_n8 and moet_decode2_n8, whose
// parameters, threads, grid and shared memory they take.
//
// The instruction applies the checkpoint's UE8M0 scales itself, to e4m3 operands. Weights are exact in e4m3, planes
// and FP4 codes alike. Activations are not: they are quantised here, 32 columns to a scale, which makes about 28 times
// the error of bfloat16 (bench/results/kernels_activations.json: 4.6% against 0.17%). That is why bfloat16 is the
// default even where this runs.
//
// Written to be read, not for speed: weights come straight from global memory, four row tiles at a time, and every
// item quantises its activations again. A work item is four row tiles of one entry, as in decode.cu: two of gate rows
// with their up rows (first GEMM), or four of output rows (second). The warps of a block share it along K, 128 columns
// in turn, and add up their parts in shared memory; blocks take items in turn.
//
// Dynamic shared memory: float4 [warps][kRowTiles][32], partial sums of the item at hand.

#include "../include/chain.cuh"
#include "../include/mma.cuh"
#include "../include/operands_bs.cuh"
#include "../include/params.cuh"

namespace moet {
namespace {

constexpr int kThreads = 128, kBlocks = 4, kRowTiles = 4, kScaleBlocks = 4;

// Row tile m of an item, counted from the top of the weight matrix: gate tiles first, then their up tiles.
template <bool First>
__device__ __forceinline__ int row_tile(int tile, int m, int gate_tiles) {
    if (!First) return tile * kRowTiles + m;
    return tile * 2 + m % 2 + (m < 2 ? 0 : gate_tiles);
}

// Operand B of 128 columns and its four scales, from this lane's activations: eight columns of each scale block.
__device__ __forceinline__ uint32_t quantise(const uint4* x, uint32_t (&b)[kScaleBlocks][2]) {
    uint32_t scales = 0;
#pragma unroll
    for (int j = 0; j < kScaleBlocks; ++j) {
        const uint4 columns = __ldg(x + 4 * j);
        uint32_t magnitude = magnitude_of(columns);
        magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, 1));  // four lanes hold a token's block
        magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, 2));
        const uint32_t scale = activation_scale(magnitude);
        activation_fragment(columns, scale, b[j]);
        scales |= scale << 8 * j;
    }
    return scales;
}

template <int Block>
__device__ __forceinline__ void add_block(float (&sum)[4], const Fragment& weights,
                                          const uint32_t (&b)[kScaleBlocks][2], uint32_t scales_a, uint32_t scales_b) {
    mma_block_scaled<Block>(sum, weights.a, b[Block], scales_a, scales_b);
}

// 128 columns of four row tiles. `weights` and `scales` are where this lane's bytes of each row tile lie.
template <bool Fp4>
__device__ __forceinline__ void add_columns(float (&sum)[kRowTiles][4], const uint8_t* const (&weights)[kRowTiles],
                                            const uint8_t* const (&scales)[kRowTiles], const uint4* x) {
    uint4 words[kRowTiles][Fp4 ? 2 : 1];
    uint32_t scales_a[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        words[m][0] = load_stream(weights[m]);
        if (Fp4) words[m][Fp4] = load_stream(weights[m] + 512);
        scales_a[m] = __ldg(reinterpret_cast<const uint32_t*>(scales[m]));
    }
    uint32_t b[kScaleBlocks][2];
    const uint32_t scales_b = quantise(x, b);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        const uint4 &low = words[m][0], &high = words[m][Fp4];
        add_block<0>(sum[m], Fp4 ? fp4_fragment(low.x, low.y) : plane_fragment(low.x), b, scales_a[m], scales_b);
        add_block<1>(sum[m], Fp4 ? fp4_fragment(low.z, low.w) : plane_fragment(low.y), b, scales_a[m], scales_b);
        add_block<2>(sum[m], Fp4 ? fp4_fragment(high.x, high.y) : plane_fragment(low.z), b, scales_a[m], scales_b);
        add_block<3>(sum[m], Fp4 ? fp4_fragment(high.z, high.w) : plane_fragment(low.w), b, scales_a[m], scales_b);
    }
}

// This warp's share of an item: every `warps`-th 128 columns.
template <bool First, bool Fp4>
__device__ __forceinline__ void add_share(float (&sum)[kRowTiles][4], const GemmParams& p, const Entry& entry, int tile,
                                          const uint4* x, int warp, int warps, int lane) {
    constexpr int kTileBytes = Fp4 ? 1024 : 512, kTileScales = 64;  // of 16 rows x 128 columns
    const int tiles_k = p.cols / 128;
    const auto* const from = reinterpret_cast<const uint8_t*>(First ? entry.weights13 : entry.weights2);
    const auto* const scales_from = reinterpret_cast<const uint8_t*>(First ? entry.scales13 : entry.scales2);
    const uint8_t *weights[kRowTiles], *scales[kRowTiles];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
        const int64_t first = int64_t(row_tile<First>(tile, m, p.out_cols / 16)) * tiles_k + warp;
        weights[m] = from + first * kTileBytes + lane * 16;
        // Lane (g, t) brings the scales of row g where t is even, of row g + 8 where it is odd.
        scales[m] = scales_from + first * kTileScales + (lane >> 2) * 8 + (lane & 1) * 4;
    }
    x += warp * 16;
    for (int k = warp; k < tiles_k; k += warps) {
        add_columns<Fp4>(sum, weights, scales, x);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
            weights[m] += warps * kTileBytes;
            scales[m] += warps * kTileScales;
        }
        x += warps * 16;
    }
}

template <bool First>
__device__ __forceinline__ void decode(const GemmParams& p) {
    extern __shared__ float4 sums[];
    constexpr int kOuts = First ? kRowTiles / 2 : kRowTiles;  // row tiles of outputs
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tiles = p.out_cols / 16 / kOuts;
    depend();
    release();
    const int items = p.header[0] * tiles;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int tile = item % tiles;
        const Entry& entry = p.entries[item / tiles];
        // Lanes beyond the entry's tokens take its last one; nothing of theirs is written.
        const int place = entry.first + min(lane >> 2, entry.count - 1);
        const int row = First ? p.routes[place] / p.top_k : place;
        const auto* const x = reinterpret_cast<const uint4*>(p.x + int64_t(row) * p.cols) + (lane & 3);
        float sum[kRowTiles][4] = {};
        if (entry.fp4)
            add_share<First, true>(sum, p, entry, tile, x, warp, warps, lane);
        else
            add_share<First, false>(sum, p, entry, tile, x, warp, warps, lane);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
            sums[(warp * kRowTiles + m) * 32 + lane] = {sum[m][0], sum[m][1], sum[m][2], sum[m][3]};
        __syncthreads();

        // Number i of lane (g, t) is row g + 8 * (i / 2), token 2 t + i % 2.
        const auto* const parts = reinterpret_cast<const float*>(sums);
        const float unscale = entry.fp4 ? kFp4OperandScale : 1.0f;
        for (int out = threadIdx.x; out < kOuts * 128; out += blockDim.x) {
            const int m = out / 128, from = out / 4 % 32, i = out % 4;
            const int token = from % 4 * 2 + i % 2, col = (tile * kOuts + m) * 16 + from / 4 + i / 2 * 8;
            if (token >= entry.count) continue;
            float total[2] = {};
            for (int w = 0; w < warps; ++w) {
                total[0] += parts[w * kRowTiles * 128 + out];
                if (First) total[1] += parts[(w * kRowTiles + kOuts) * 128 + out];
            }
            const int to = entry.first + token;
            if (First) {
                const float inner = clamped_swiglu(total[0] * unscale, total[1] * unscale, p.limit);
                p.inner[int64_t(to) * p.out_cols + col] = to_bf16(inner);
            } else {
                const int route = p.routes[to];
                p.routed[int64_t(route) * p.out_cols + col] = total[0] * unscale * p.weights[route];
            }
        }
        __syncthreads();
    }
}

}  // namespace
}  // namespace moet

extern "C" __global__ void __launch_bounds__(moet::kThreads, moet::kBlocks)
    moet_decode13_n8_bs(const __grid_constant__ moet::GemmParams p) {
    moet::decode<true>(p);
}

extern "C" __global__ void __launch_bounds__(moet::kThreads, moet::kBlocks)
    moet_decode2_n8_bs(const __grid_constant__ moet::GemmParams p) {
    moet::decode<false>(p);
}
