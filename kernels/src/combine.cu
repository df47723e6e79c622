// A token's routed rows, already weighted, added in the order of its choices. No atomics: the same sum each run.
//
// Grid (tokens, ceil(hidden / 2048)), 256 threads, eight columns a thread.

#include "../include/chain.cuh"
#include "../include/mma.cuh"
#include "../include/params.cuh"

namespace {

__device__ __forceinline__ uint32_t pair(float low, float high) {
    return moet::to_bf16(low) | uint32_t(moet::to_bf16(high)) << 16;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) moet_combine(const __grid_constant__ moet::CombineParams p) {
    const int token = blockIdx.x, column = (blockIdx.y * 256 + threadIdx.x) * 8;
    moet::depend();
    moet::release();
    if (column >= p.hidden) return;
    float sum[8] = {};
    const bool padded = p.padding && p.padding[token];
    for (int choice = 0; choice < p.top_k && !padded; ++choice) {
        const int route = token * p.top_k + choice;
        const int id = p.ids[route];
        if (id < 0 || id >= p.experts) continue;  // such a route has no row
        const auto* row = reinterpret_cast<const float4*>(p.routed + int64_t(route) * p.hidden + column);
        const float4 first = row[0], second = row[1];
        const float part[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += part[i];
    }
    const uint4 out = {pair(sum[0], sum[1]), pair(sum[2], sum[3]), pair(sum[4], sum[5]), pair(sum[6], sum[7])};
    *reinterpret_cast<uint4*>(p.out + int64_t(token) * p.hidden + column) = out;
}
