// From the router's choices to the GEMMs' work: who goes where, and where every expert's bytes lie.
//
// One block. Each warp owns a run of routes. It counts them by expert, the block adds the counts up, and the warp
// goes over its run again and puts each route in its place. Nothing depends on the order in which threads arrive:
// an expert's routes keep the order of `ids`.
//
// Threads: a multiple of 32, at least `experts`, at most 1024.
// Dynamic shared memory: uint16 [warps][experts] counts of each warp, then where its next route of an expert goes.

#include "../include/chain.cuh"
#include "../include/params.cuh"

namespace moet {
namespace {

constexpr uint32_t kWholeWarp = 0xffffffffu;

struct Pair {
    int routes, entries;
};

__device__ __forceinline__ Pair operator+(Pair a, Pair b) { return {a.routes + b.routes, a.entries + b.entries}; }

// Sum over the threads before this one; `all` is the sum over the whole block.
__device__ Pair exclusive_sum(Pair mine, Pair* warp_sums, Pair& all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    Pair sum = mine;
    for (int d = 1; d < 32; d *= 2) {
        const Pair before = {__shfl_up_sync(kWholeWarp, sum.routes, d), __shfl_up_sync(kWholeWarp, sum.entries, d)};
        if (lane >= d) sum = sum + before;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    Pair earlier = {};
    all = {};
    for (int w = 0; w < warps; ++w) {
        if (w < warp) earlier = earlier + warp_sums[w];
        all = all + warp_sums[w];
    }
    return {earlier.routes + sum.routes - mine.routes, earlier.entries + sum.entries - mine.entries};
}

__device__ __forceinline__ int expert_of(const RoutingParams& p, int route) {
    if (route >= p.tokens * p.top_k) return -1;
    if (p.padding && p.padding[route / p.top_k]) return -1;
    const int id = p.ids[route];
    return id < p.experts ? id : -1;
}

}  // namespace
}  // namespace moet

extern "C" __global__ void __launch_bounds__(1024, 1) moet_routing(const __grid_constant__ moet::RoutingParams p) {
    using namespace moet;
    extern __shared__ uint16_t next[];
    __shared__ Pair warp_sums[32];
    __shared__ int scales_only;  // entries whose codes come from a correction row; counted where `reads` is given
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int routes = p.tokens * p.top_k;
    const int run = (routes + blockDim.x - 1) / blockDim.x * 32;  // routes of a warp
    uint16_t* const mine = next + warp * p.experts;

    depend();
    release();
    for (int i = threadIdx.x; i < warps * p.experts; i += blockDim.x) next[i] = 0;
    if (threadIdx.x == 0) scales_only = 0;
    __syncthreads();
    for (int base = warp * run; base < min((warp + 1) * run, routes); base += 32) {
        const int expert = expert_of(p, base + lane);
        const uint32_t same = __match_any_sync(kWholeWarp, expert);
        if (expert >= 0 && lane == __ffs(same) - 1) mine[expert] += __popc(same);
        __syncwarp();
    }
    __syncthreads();

    const int expert = threadIdx.x;
    int total = 0;
    if (expert < p.experts)
        for (int w = 0; w < warps; ++w) total += next[w * p.experts + expert];
    const int entries = (total + p.chunk - 1) / p.chunk;
    Pair all;
    const Pair before = exclusive_sum({total, entries}, warp_sums, all);
    if (expert < p.experts) {
        int place = before.routes;
        for (int w = 0; w < warps; ++w) {
            const int count = next[w * p.experts + expert];
            next[w * p.experts + expert] = place;
            place += count;
        }
        if (total > 0) {
            const int slot = p.slots ? p.slots[expert] : -1;
            const auto row = reinterpret_cast<uint64_t>(p.rows) + slot * p.row_bytes;
            Entry entry;
            entry.weights13 = slot < 0 ? reinterpret_cast<uint64_t>(p.planes13) + expert * p.planes13_bytes : row;
            entry.weights2 = slot < 0 ? reinterpret_cast<uint64_t>(p.planes2) + expert * p.planes2_bytes
                                      : row + p.row_down_offset;
            entry.scales13 = reinterpret_cast<uint64_t>(p.scales13) + expert * p.scales13_bytes;
            entry.scales2 = reinterpret_cast<uint64_t>(p.scales2) + expert * p.scales2_bytes;
            entry.fp4 = slot >= 0;
            entry.expert = expert;
            for (int done = 0, at = before.entries; done < total; done += p.chunk, ++at) {
                entry.first = before.routes + done;
                entry.count = min(p.chunk, total - done);
                p.entries[at] = entry;
            }
            if (p.counts) p.counts[expert] += total;
            if (p.reads && slot >= 0) atomicAdd(&scales_only, entries);
        }
    }
    if (threadIdx.x == 0) {
        p.header[0] = all.entries;
        p.header[1] = all.routes;
    }
    __syncthreads();
    if (p.reads && threadIdx.x == 0) {
        // Each entry has the GEMMs read its weights once. Calls of one layer follow each other, so plain adds would
        // do; these send the sums off without waiting for the words. Who copies them meanwhile may see one without
        // the other, but each whole.
        atomicAdd(p.reads, all.entries - scales_only);
        atomicAdd(p.reads + 1, scales_only);
    }
    for (int base = warp * run; base < min((warp + 1) * run, routes); base += 32) {
        const int expert = expert_of(p, base + lane);
        const uint32_t same = __match_any_sync(kWholeWarp, expert);
        const int rank = __popc(same & ((1u << lane) - 1));
        if (expert >= 0) p.routes[mine[expert] + rank] = base + lane;
        __syncwarp();
        if (expert >= 0 && rank == 0) mine[expert] += __popc(same);
        __syncwarp();
    }
}
