// Both expert GEMMs for few tokens an expert: as fast as the weights can be read, each byte once.
//
// A work item is a few row tiles of one entry: gate rows with their up rows (first GEMM), or output rows (second);
// four tiles for up to eight tokens an expert, else two. The warps of a block share an item along K, one unit in
// turn, and add up their parts in shared memory; blocks take items in turn. A unit is 1,024 bytes of each row tile:
// 256 columns, of FP4 128.
//
// Each warp has a ring of stages in shared memory that nobody else touches. Copies run ahead of the arithmetic by
// the whole ring, over the ends of items too, and are waited for in order:
//
//     stage of the ring       n            n + 1        n + 2        n (again)
//     holds unit              computed on  on its way   on its way   asked for once it has been computed on
//     a stage                 [row tile][half][lane] 16 bytes of weights, then [row tile] 128 bytes of scales
//
// A lane copies the weights that it reads itself; scales are copied by the first lanes for the whole warp. When a
// unit has arrived, each lane spreads the scales of one row into exponents (mma.cuh) for all lanes to read: doing
// that for every use instead would be a sixth of the kernel's instructions. Activations come through the
// first-level cache.
//
// Dynamic shared memory, in this order:
//     rings    Stage [warps][kStages]
//     spread   uint32 [warps][row tiles][16][8]            exponents of the unit at hand: row, scale block
//     sums     float4 [warps][token tiles][row tiles][32]  partial sums of the item at hand
//     entries  Entry [max_entries]
//     places   Place [max_routes]

#include "../include/chain.cuh"
#include "../include/copies.cuh"
#include "../include/mma.cuh"
#include "../include/params.cuh"

namespace moet {
namespace {

constexpr uint32_t kWholeWarp = 0xffffffffu;
constexpr int kHalfUnit = 512;  // bytes of a row tile that one 16-byte load a lane takes in

// What a kernel for up to 8 * TokenTiles tokens an expert keeps in registers decides the rest: its accumulators are
// RowTiles * TokenTiles * 4 of them.
constexpr int kThreads = 128;
template <int TokenTiles>
constexpr int kRowTiles = TokenTiles == 1 ? 4 : 2;
#if __CUDA_ARCH__ >= 1000
template <int TokenTiles>
constexpr int kBlocks = TokenTiles == 1 ? 4 : 3;
#else
template <int TokenTiles>
constexpr int kBlocks = TokenTiles <= 2 ? 4 : 3;
#endif
template <int TokenTiles>
constexpr int kStages = TokenTiles <= 2 ? 2 : 3;
// Whether the first eight tokens' activations of a unit are asked for before its weights are waited for.
template <int TokenTiles>
constexpr bool kAhead = TokenTiles == 1;

template <int RowTiles>
struct Stage {
    uint4 weights[RowTiles][2][32];
    uint8_t scales[RowTiles][128];
};
static_assert(sizeof(Stage<2>) == 2304);

// Of one route of the entries: the row of its activations, where its output goes, and its weight.
struct Place {
    int32_t row, route;
    float weight;
};

struct Work {
    const Entry* entries;
    uint32_t tiles_inverse;  // ceil(2^32 / tiles): exact for every item, since items * tiles < 2^32
    int tiles, items;      // items of an entry, of all entries
    int row_tiles;         // of the gate, or of the up projection; first GEMM only
    int col_tiles, warps, warp, lane;
    uint32_t weight_step;  // bytes of a row tile from one of a warp's units to its next

    __device__ __forceinline__ int entry_of(int item) const { return __umulhi(item, tiles_inverse); }
    __device__ __forceinline__ int units(bool fp4) const { return fp4 ? col_tiles : (col_tiles + 1) / 2; }
};

// Row tile m of an item, counted from the top of the weight matrix: gate tiles first, then their up tiles.
template <bool First, int RowTiles>
__device__ __forceinline__ int row_tile(const Work& work, int tile, int m) {
    constexpr int kHalf = RowTiles / 2;
    if (!First) return tile * RowTiles + m;
    return tile * kHalf + m % kHalf + (m < kHalf ? 0 : work.row_tiles);
}

// Runs ahead of the arithmetic through a warp's units.
template <bool First, int RowTiles>
struct Loader {
    const uint8_t *weights[RowTiles], *scales;  // this lane's next bytes
    int item, unit, units;
    uint32_t scale_step;  // bytes of scales of a unit
    bool scale_lane;      // takes part in copying scales
    bool torn;            // the last unit is only half there

    __device__ __forceinline__ void start(const Work& work) {
        if (item >= work.items) return;
        const int index = work.entry_of(item), tile = item - index * work.tiles;
        const Entry& entry = work.entries[index];
        const bool fp4 = entry.fp4;
        units = work.units(fp4);
        unit = work.warp;
        torn = !fp4 && work.col_tiles % 2;
        scale_step = fp4 ? 64 : 128;
        const int row_bytes = work.col_tiles * (fp4 ? 2 : 1) * kHalfUnit, piece = work.lane & 7;
        const auto* const from = reinterpret_cast<const uint8_t*>(First ? entry.weights13 : entry.weights2) +
                                 unit * 2 * kHalfUnit + work.lane * 16;
#pragma unroll
        for (int m = 0; m < RowTiles; ++m)
            weights[m] = from + int64_t(row_tile<First, RowTiles>(work, tile, m)) * row_bytes;
        // Eight lanes copy the scales of a row tile.
        scales = reinterpret_cast<const uint8_t*>(First ? entry.scales13 : entry.scales2) + unit * scale_step + piece * 16 +
                 int64_t(row_tile<First, RowTiles>(work, tile, work.lane / 8 % RowTiles)) * work.col_tiles * 64;
        scale_lane = work.lane < RowTiles * 8 && piece * 16 < scale_step;
    }

    // Ask for one unit, if there is one, and step on. Every call commits one group of copies.
    __device__ __forceinline__ void ask(const Work& work, uint32_t stage) {
        while (item < work.items && unit >= units) {  // a warp may have no share of an item
            item += gridDim.x;
            start(work);
        }
        if (item < work.items) {
            const bool whole = !torn || unit + 1 < units;
            const uint32_t to = stage + work.lane * 16;
#pragma unroll
            for (int m = 0; m < RowTiles; ++m) {
                copy_async(to + 2 * m * kHalfUnit, weights[m]);
                if (whole) copy_async(to + (2 * m + 1) * kHalfUnit, weights[m] + kHalfUnit);
                weights[m] += work.weight_step;
            }
            // Scales follow the weights, 128 bytes a row tile: eight lanes' 16.
            if (scale_lane && (whole || (work.lane & 7) < 4)) copy_async(to + 2 * RowTiles * kHalfUnit, scales);
            scales += work.warps * scale_step;
            unit += work.warps;
        }
        commit_copies();
    }
};

__device__ __forceinline__ uint32_t word_of(const uint4& words, int index) {
    return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// A lane's 16 bytes of activations. Those of the second GEMM come from the first, which may still run when this kernel
// starts: the read-only path (ld.global.nc) is not for them (PTX ISA, "ld": read-only for the kernel's whole life).
template <bool First>
__device__ __forceinline__ uint4 read_tokens(const uint4* from) {
    return First ? __ldg(from) : *from;
}

// Half a unit of two row tiles against every token. `spread` is where the exponents of this lane's first row begin,
// `x` where its activations do; those of the first eight tokens may be in `tokens` already.
template <bool First, bool Fp4, int TokenTiles>
__device__ __forceinline__ void compute(float (&sum)[2][TokenTiles][4], const uint4 (&words)[2], uint32_t spread,
                                        const uint4 (&tokens)[8], const uint4* const (&x)[TokenTiles], int half,
                                        int token_tiles) {
    constexpr int kScaleBlocks = Fp4 ? 2 : 4;
    uint4 low[2], high[2];  // FP4 takes a unit's four exponents and uses two
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        low[m] = read_shared16(spread + m * 512 + (Fp4 ? 0 : half * 16));
        high[m] = read_shared16(spread + m * 512 + 256 + (Fp4 ? 0 : half * 16));
    }
#pragma unroll
    for (int j = 0; j < kScaleBlocks; ++j) {
        A2 a[2];
        const int block = Fp4 ? 2 * half + j : j;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint32_t up = word_of(low[m], block), down = word_of(high[m], block);
            if (Fp4)
                a[m] = fp4_block(word_of(words[m], 2 * j), word_of(words[m], 2 * j + 1), up, down);
            else
                a[m] = w2_block(word_of(words[m], j), up, down);
        }
#pragma unroll
        for (int nt = 0; nt < TokenTiles; ++nt) {
            if (nt > 0 && nt >= token_tiles) break;
            const int place = half * kScaleBlocks + j;
            const uint4 b = kAhead<TokenTiles> && nt == 0 ? tokens[place] : read_tokens<First>(x[nt] + place * 4);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                mma(sum[m][nt], a[m].step[0], b.x, b.y);
                mma(sum[m][nt], a[m].step[1], b.z, b.w);
            }
        }
    }
}

// Exponents of one row of a unit: this lane's share of what `compute` reads. `from` and `to` are this lane's places.
__device__ __forceinline__ void spread_scales(uint32_t from, uint32_t to, uint32_t bias) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t four = read_shared4(from + half * 64);
        write_shared16(to + half * 16, {exponent_pair(byte_of(four, 0), bias), exponent_pair(byte_of(four, 1), bias),
                                        exponent_pair(byte_of(four, 2), bias), exponent_pair(byte_of(four, 3), bias)});
    }
}

template <bool First, int TokenTiles>
__device__ __forceinline__ void decode(const GemmParams& p) {
    extern __shared__ uint4 shared[];
    constexpr int kRing = kStages<TokenTiles>, kRows = kRowTiles<TokenTiles>, kStage = sizeof(Stage<kRows>);
    constexpr int kSpread = kRows * 16 * 8;  // words of a warp's exponents
    Work work;
    work.warps = blockDim.x / 32;
    work.warp = __shfl_sync(kWholeWarp, threadIdx.x / 32, 0);  // tells the compiler that a warp agrees on it
    work.lane = threadIdx.x % 32;
    work.row_tiles = p.out_cols / 16;
    work.tiles = work.row_tiles / (First ? kRows / 2 : kRows);
    work.tiles_inverse = uint32_t((0x100000000ull + work.tiles - 1) / work.tiles);
    work.col_tiles = p.cols / 128;
    work.weight_step = work.warps * 2 * kHalfUnit;
    auto* const rings = reinterpret_cast<uint8_t*>(shared);
    auto* const spreads = reinterpret_cast<uint32_t*>(rings + work.warps * kRing * kStage);
    auto* const sums = reinterpret_cast<float4*>(spreads + work.warps * kSpread);
    auto* const entries = reinterpret_cast<Entry*>(sums + work.warps * TokenTiles * kRows * 32);
    auto* const places = reinterpret_cast<Place*>(entries + p.max_entries);
    work.entries = entries;

    if (First) {
        depend();  // on the routing kernel
        release();
    }
    // The second GEMM may read what the routing kernel wrote before depend(): see chain.cuh.
    const int entry_count = p.header[0], routes = p.header[1];
    work.items = entry_count * work.tiles;
    const auto* from = reinterpret_cast<const uint4*>(p.entries);
    for (int i = threadIdx.x; i < entry_count * 3; i += blockDim.x) reinterpret_cast<uint4*>(entries)[i] = from[i];
    for (int i = threadIdx.x; i < routes; i += blockDim.x) {
        const int route = p.routes[i];
        places[i] = {First ? route / p.top_k : i, route, First ? 0.0f : p.weights[route]};
    }
    __syncthreads();

    const int lane = work.lane, g = lane >> 2, t = lane & 3;
    const uint32_t ring = shared_address(rings + work.warp * kRing * kStage);
    const uint32_t spread = shared_address(spreads + work.warp * kSpread);
    // Where in a stage the scales lie that this lane spreads: of row lane % 16 of every other row tile.
    const uint32_t lane_scales = 2 * kRows * kHalfUnit + (lane >> 4) * 128 + (lane & 7) * 8 + (lane >> 3 & 1) * 4;
    Loader<First, kRows> loader;
    loader.item = blockIdx.x;
    loader.start(work);
#pragma unroll
    for (int i = 0; i < kRing; ++i) loader.ask(work, ring + i * kStage);
    if (!First) {
        depend();  // on the first GEMM
        release();
    }

    uint32_t stage = ring;
    for (int item = blockIdx.x; item < work.items; item += gridDim.x) {
        const int index = work.entry_of(item), tile = item - index * work.tiles;
        const Entry& entry = entries[index];
        const int first = entry.first, count = entry.count, token_tiles = (count + 7) / 8;
        const bool fp4 = entry.fp4;
        const uint4* x[TokenTiles];  // this lane's activations of the unit at hand
        const int unit_words = fp4 ? 16 : 32;
#pragma unroll
        for (int nt = 0; nt < TokenTiles; ++nt) {
            const int row = places[first + min(nt * 8 + g, count - 1)].row;
            x[nt] = reinterpret_cast<const uint4*>(p.x + int64_t(row) * p.cols) + t + work.warp * unit_words;
        }
        float sum[kRows / 2][2][TokenTiles][4] = {};
        const int units = work.units(fp4);
        for (int unit = work.warp; unit < units; unit += work.warps) {
            const bool whole = fp4 || 2 * unit + 1 < work.col_tiles;
            uint4 tokens[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (kAhead<TokenTiles> && (i < 4 || (!fp4 && whole))) tokens[i] = read_tokens<First>(x[0] + 4 * i);
            wait_for_copies<kRing - 1>();
            __syncwarp();
#pragma unroll
            for (int pair = 0; pair < kRows / 2; ++pair)
                spread_scales(stage + lane_scales + pair * 256, spread + pair * 1024 + lane * 32, fp4 ? kFp4Bias : 0);
            __syncwarp();
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (half == 1 && !whole) break;
#pragma unroll
                for (int pair = 0; pair < kRows / 2; ++pair) {
                    const uint32_t at = stage + lane * 16 + (4 * pair + half) * kHalfUnit;
                    const uint4 words[2] = {read_shared16(at), read_shared16(at + 2 * kHalfUnit)};
                    if (fp4)
                        compute<First, true>(sum[pair], words, spread + pair * 1024 + g * 32, tokens, x, half, token_tiles);
                    else
                        compute<First, false>(sum[pair], words, spread + pair * 1024 + g * 32, tokens, x, half, token_tiles);
                }
            }
            __syncwarp();
            loader.ask(work, stage);
            stage = stage + kStage == ring + kRing * kStage ? ring : stage + kStage;
#pragma unroll
            for (int nt = 0; nt < TokenTiles; ++nt) x[nt] += work.warps * unit_words;
        }

#pragma unroll
        for (int nt = 0; nt < TokenTiles; ++nt) {
            if (nt > 0 && nt >= token_tiles) break;
#pragma unroll
            for (int m = 0; m < kRows; ++m) {
                const float(&c)[4] = sum[m / 2][m % 2][nt];
                sums[((work.warp * TokenTiles + nt) * kRows + m) * 32 + lane] = {c[0], c[1], c[2], c[3]};
            }
        }
        __syncthreads();
        const auto* parts = reinterpret_cast<const float*>(sums);
        const float unscale = fp4 ? kFp4Scale : 1.0f;
        constexpr int kOuts = First ? kRows / 2 : kRows;  // row tiles of outputs
        for (int o = threadIdx.x; o < token_tiles * kOuts * 128; o += blockDim.x) {
            const int nt = o / (kOuts * 128), m = o / 128 % kOuts, place = o % 128;
            const int row = place / 16 + (place & 2) * 4, token = nt * 8 + place / 4 % 4 * 2 + (place & 1);
            if (token >= count) continue;
            float total[2] = {0, 0};
            for (int w = 0; w < work.warps; ++w) {
                const int at = ((w * TokenTiles + nt) * kRows + m) * 128 + place;
                total[0] += parts[at];
                if (First) total[1] += parts[at + kOuts * 128];
            }
            if (First) {
                const float inner = clamped_swiglu(total[0] * unscale, total[1] * unscale, p.limit);
                p.inner[int64_t(first + token) * p.out_cols + (tile * kOuts + m) * 16 + row] = to_bf16(inner);
            } else {
                const Place& to = places[first + token];
                p.routed[int64_t(to.route) * p.out_cols + (tile * kOuts + m) * 16 + row] = total[0] * unscale * to.weight;
            }
        }
        __syncthreads();
    }
}

}  // namespace
}  // namespace moet

#define MOET_DECODE_GEMM(name, first, tokens)                                                                  \
    extern "C" __global__ void __launch_bounds__(moet::kThreads, moet::kBlocks<tokens / 8>)                     \
        name##_n##tokens(const __grid_constant__ moet::GemmParams p) { moet::decode<first, tokens / 8>(p); }
#define MOET_DECODE(tokens)                       \
    MOET_DECODE_GEMM(moet_decode13, true, tokens) \
    MOET_DECODE_GEMM(moet_decode2, false, tokens)

MOET_DECODE(8)
MOET_DECODE(16)
MOET_DECODE(32)
