// Both expert GEMMs for few tokens an expert: as fast as the weights can be read, each byte once.
//
// A work item is two row tiles of one entry: 16 gate rows with their 16 up rows (first GEMM), or 32 output rows
// (second). The warps of a block share an item along K and add up their parts in shared memory; blocks take items
// in turn. A warp's share of an item is read in steps of four 16 x 128 tiles (FP4: 16 x 64) of either row tile.
// While it computes on a slot it has already asked for the same slot of its next step, be that of another item:
//
//     registers of a warp      slot 0     slot 1     slot 2     slot 3         scales
//     compute step n           use, then  use, then  use, then  use, then      in use for all of step n
//     load step n + 1          refill 0   refill 1   refill 2   refill 3       loaded at its begin
//
// so some 9 KiB of weights a warp are on their way at any time, over item boundaries too. Activations come
// through the first-level cache.
//
// Dynamic shared memory, in this order:
//     sums     float4 [buffers][warps][token tiles][2][32]   partial sums, buffers = 2 up to 16 tokens, else 1
//     entries  Entry [max_entries]
//     routes   int32 [max_routes]

#include "../include/chain.cuh"
#include "../include/mma.cuh"
#include "../include/params.cuh"

namespace moet {
namespace {

constexpr int kSlots = 4;
constexpr int kTileBytes = 512;

// The accumulators of many tokens leave registers for fewer warps.
template <int TokenTiles>
constexpr int kThreads = TokenTiles == 1 ? 256 : 128;

template <int TokenTiles>
constexpr int kBlocks = TokenTiles == 1 ? 2 : 3;

template <int TokenTiles>
constexpr int kBuffers = TokenTiles <= 2 ? 2 : 1;

struct Step {
    int item, step, steps, units;
    const uint8_t *weights[2], *scales[2];
    bool fp4, valid;
};

struct Work {
    const Entry* entries;
    int tiles, items, col_tiles, warps, warp, lane;
    int step_bits;           // a step is 2^step_bits units: warps is a power of two
    uint32_t tiles_inverse;  // ceil(2^32 / tiles): exact for every item, since items * tiles < 2^32
    bool first;

    __device__ __forceinline__ int entry_of(int item) const { return __umulhi(item, tiles_inverse); }
};

// Where a step's bytes are. `units` tiles make a row tile; a unit is 128 columns, of FP4 64.
__device__ __forceinline__ Step step_at(const Work& work, int item, int step) {
    Step s;
    s.item = item;
    s.step = step;
    s.valid = item < work.items;
    if (!s.valid) return s;
    const int index = work.entry_of(item), tile = item - index * work.tiles;
    const Entry& entry = work.entries[index];
    s.fp4 = entry.fp4;
    s.units = s.fp4 ? 2 * work.col_tiles : work.col_tiles;
    s.steps = (s.units + kSlots * work.warps - 1) >> work.step_bits;
    const int rows[2] = {work.first ? tile : 2 * tile, work.first ? work.tiles + tile : 2 * tile + 1};
    const auto* weights = reinterpret_cast<const uint8_t*>(work.first ? entry.weights13 : entry.weights2);
    const auto* scales = reinterpret_cast<const uint8_t*>(work.first ? entry.scales13 : entry.scales2);
    const int unit = (step * work.warps + work.warp) * kSlots;
    // A lane fetches the scales of its rows for one of the step's column tiles; the others get them by shuffle.
    const int scale_tile = s.fp4 ? unit / 2 + (work.lane & 1) : unit + (work.lane & 3);
    const int scale_offset = min(scale_tile, work.col_tiles - 1) * 64 + (work.lane >> 2) * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        s.weights[i] = weights + (int64_t(rows[i]) * s.units + unit) * kTileBytes + work.lane * 16;
        s.scales[i] = scales + int64_t(rows[i]) * work.col_tiles * 64 + scale_offset;
    }
    return s;
}

__device__ __forceinline__ Step following(const Work& work, const Step& s) {
    const bool more = s.step + 1 < s.steps;
    return step_at(work, more ? s.item : s.item + gridDim.x, more ? s.step + 1 : 0);
}

__device__ __forceinline__ bool holds(const Work& work, const Step& s, int slot) {
    return s.valid && (s.step * work.warps + work.warp) * kSlots + slot < s.units;
}

template <int TokenTiles>
struct Accumulators {
    float sum[2][TokenTiles][4];
};

template <int TokenTiles>
__device__ __forceinline__ void block_mma(Accumulators<TokenTiles>& acc, int matrix, const A2& a, const uint4& x, int nt) {
    mma(acc.sum[matrix][nt], a.step[0], x.x, x.y);
    mma(acc.sum[matrix][nt], a.step[1], x.z, x.w);
}

template <int TokenTiles>
__device__ __forceinline__ void compute_w2(
    Accumulators<TokenTiles>& acc, const uint4 (&words)[2], const uint2 (&scales)[2],
    const uint4* activations, const int (&x)[TokenTiles], int column, int token_tiles) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        A2 a[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint32_t word = j == 0 ? words[m].x : j == 1 ? words[m].y : j == 2 ? words[m].z : words[m].w;
            a[m] = w2_block(word, exponent_pair(byte_of(scales[m].x, j)), exponent_pair(byte_of(scales[m].y, j)));
        }
#pragma unroll
        for (int nt = 0; nt < TokenTiles; ++nt) {
            if (nt > 0 && nt >= token_tiles) break;
            const uint4 b = __ldg(activations + (x[nt] + column + 4 * j));
            block_mma(acc, 0, a[0], b, nt);
            block_mma(acc, 1, a[1], b, nt);
        }
    }
}

template <int TokenTiles>
__device__ __forceinline__ void compute_fp4(
    Accumulators<TokenTiles>& acc, const uint4 (&words)[2], const uint2 (&scales)[2],
    const uint4* activations, const int (&x)[TokenTiles], int column, int token_tiles, int byte) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        A2 a[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint32_t first = j == 0 ? words[m].x : words[m].z, second = j == 0 ? words[m].y : words[m].w;
            a[m] = fp4_block(first, second, byte_of(scales[m].x, byte + j), byte_of(scales[m].y, byte + j));
        }
#pragma unroll
        for (int nt = 0; nt < TokenTiles; ++nt) {
            if (nt > 0 && nt >= token_tiles) break;
            const uint4 b = __ldg(activations + (x[nt] + column + 4 * j));
            block_mma(acc, 0, a[0], b, nt);
            block_mma(acc, 1, a[1], b, nt);
        }
    }
}

template <bool First, int TokenTiles>
__device__ __forceinline__ void decode(const GemmParams& p) {
    extern __shared__ float4 shared[];
    Work work;
    work.first = First;
    work.warps = blockDim.x / 32;
    work.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // tells the compiler that a warp agrees on it
    work.lane = threadIdx.x % 32;
    work.tiles = p.out_cols / (First ? 16 : 32);
    work.col_tiles = p.cols / 128;
    work.step_bits = 31 - __clz(kSlots * work.warps);
    work.tiles_inverse = uint32_t((0x100000000ull + work.tiles - 1) / work.tiles);
    float4* const sums = shared;
    auto* const entries = reinterpret_cast<Entry*>(sums + kBuffers<TokenTiles> * work.warps * TokenTiles * 2 * 32);
    auto* const routes = reinterpret_cast<int32_t*>(entries + p.max_entries);
    work.entries = entries;

    if (First) {
        depend();  // on the routing kernel
        release();
    }
    // The second GEMM may read what the routing kernel wrote before depend(): see chain.cuh.
    const int entry_count = p.header[0];
    const auto* from = reinterpret_cast<const uint4*>(p.entries);
    for (int i = threadIdx.x; i < p.max_entries * 3; i += blockDim.x) reinterpret_cast<uint4*>(entries)[i] = from[i];
    for (int i = threadIdx.x; i < p.max_routes; i += blockDim.x) routes[i] = p.routes[i];
    __syncthreads();
    work.items = entry_count * work.tiles;

    const int g = work.lane >> 2, t = work.lane & 3;
    uint4 words[kSlots][2];
    uint2 scales[2], coming[2];
    Step now = step_at(work, blockIdx.x, 0);
    if (now.valid) {
#pragma unroll
        for (int m = 0; m < 2; ++m) scales[m] = load_stream8(now.scales[m]);
#pragma unroll
        for (int slot = 0; slot < kSlots; ++slot)
            if (holds(work, now, slot)) {
#pragma unroll
                for (int m = 0; m < 2; ++m) words[slot][m] = load_stream(now.weights[m] + slot * kTileBytes);
            }
    }
    if (!First) {
        depend();  // on the first GEMM
        release();
    }

    const auto* const activations = reinterpret_cast<const uint4*>(p.x);
    int buffer = 0;
    while (now.valid) {
        const Entry& entry = entries[work.entry_of(now.item)];
        const int token_tiles = (entry.count + 7) / 8;
        int x[TokenTiles];  // where a lane's activations begin, in 16-byte words
#pragma unroll
        for (int nt = 0; nt < TokenTiles; ++nt) {
            const int index = entry.first + min(nt * 8 + g, entry.count - 1);
            const int row = First ? routes[index] / p.top_k : index;
            x[nt] = row * (p.cols / 8) + t;
        }
        Accumulators<TokenTiles> acc = {};
        bool last;
        do {
            const Step next = following(work, now);
            if (next.valid) {
#pragma unroll
                for (int m = 0; m < 2; ++m) coming[m] = load_stream8(next.scales[m]);
            }
#pragma unroll
            for (int slot = 0; slot < kSlots; ++slot) {
                if (holds(work, now, slot)) {
                    const int unit = (now.step * work.warps + work.warp) * kSlots + slot;
                    const int source = (work.lane & 28) | (now.fp4 ? slot / 2 : slot);
                    uint2 s[2];
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        s[m].x = __shfl_sync(0xffffffffu, scales[m].x, source);
                        s[m].y = __shfl_sync(0xffffffffu, scales[m].y, source);
                    }
                    if (now.fp4)
                        compute_fp4<TokenTiles>(acc, words[slot], s, activations, x, unit * 8, token_tiles, 2 * (slot & 1));
                    else
                        compute_w2<TokenTiles>(acc, words[slot], s, activations, x, unit * 16, token_tiles);
                }
                if (holds(work, next, slot)) {
#pragma unroll
                    for (int m = 0; m < 2; ++m) words[slot][m] = load_stream(next.weights[m] + slot * kTileBytes);
                }
            }
            last = now.step + 1 == now.steps;
            if (last) {
                float4* const mine = sums + buffer * work.warps * TokenTiles * 64;
#pragma unroll
                for (int nt = 0; nt < TokenTiles; ++nt) {
                    if (nt > 0 && nt >= token_tiles) break;
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        const float(&c)[4] = acc.sum[m][nt];
                        mine[((work.warp * TokenTiles + nt) * 2 + m) * 32 + work.lane] = {c[0], c[1], c[2], c[3]};
                    }
                }
                __syncthreads();
                const auto* parts = reinterpret_cast<const float*>(mine);
                const float unscale = now.fp4 ? kFp4Scale : 1.0f;
                const int tile = now.item - work.entry_of(now.item) * work.tiles;
                const int matrices = First ? 1 : 2;  // outputs of a token tile: 128, or 128 of each row tile
                for (int o = threadIdx.x; o < token_tiles * matrices * 128; o += blockDim.x) {
                    const int nt = o / (matrices * 128), m = o / 128 % matrices, place = o % 128;
                    const int row = place / 16 + (place & 2) * 4, token = nt * 8 + place / 4 % 4 * 2 + (place & 1);
                    if (token >= entry.count) continue;
                    float total[2] = {0, 0};
                    for (int w = 0; w < work.warps; ++w) {
                        const int at = ((w * TokenTiles + nt) * 2 + m) * 128 + place;
                        total[0] += parts[at];
                        if (First) total[1] += parts[at + 128];
                    }
                    const int index = entry.first + token;
                    if (First) {
                        const float inner = clamped_swiglu(total[0] * unscale, total[1] * unscale, p.limit);
                        p.inner[int64_t(index) * p.out_cols + tile * 16 + row] = to_bf16(inner);
                    } else {
                        const int route = routes[index];
                        const float result = total[0] * unscale * p.weights[route];
                        p.routed[int64_t(route) * p.out_cols + tile * 32 + m * 16 + row] = result;
                    }
                }
                if (kBuffers<TokenTiles> == 1) __syncthreads();
                else buffer ^= 1;
            }
            now = next;
#pragma unroll
            for (int m = 0; m < 2; ++m) scales[m] = coming[m];
        } while (!last);
    }
}

}  // namespace
}  // namespace moet

#define MOET_DECODE_GEMM(name, first, tokens)                                                                  \
    extern "C" __global__ void __launch_bounds__(moet::kThreads<tokens / 8>, moet::kBlocks<tokens / 8>)         \
        name##_n##tokens(const __grid_constant__ moet::GemmParams p) { moet::decode<first, tokens / 8>(p); }
#define MOET_DECODE(tokens)                          \
    MOET_DECODE_GEMM(moet_decode13, true, tokens)    \
    MOET_DECODE_GEMM(moet_decode2, false, tokens)

MOET_DECODE(8)
MOET_DECODE(16)
MOET_DECODE(32)
MOET_DECODE(64)
