// What the host hands to the kernels, one struct a kernel, passed by value.
//
// runtime_ext/src/moet_w2/kernels/params.py mirrors these structs with ctypes; a test compiles this header and
// compares every offset. Pointers are device addresses; a mapped layer's are those of its host memory.

#pragma once

#include <cstdint>

namespace moet {

// One expert with up to `chunk` of its tokens: a unit of work of the GEMMs. The routing kernel writes these.
struct Entry {
    uint64_t weights13;  // planes, or FP4 codes, of gate then up rows
    uint64_t weights2;   // planes, or FP4 codes, of the down projection
    uint64_t scales13;   // UE8M0 bytes, the base's in either tier
    uint64_t scales2;
    int32_t first;   // index of its first route in `routes`
    int32_t count;   // routes of this entry, 1 .. chunk
    int32_t fp4;     // 1 where weights13 and weights2 are FP4 codes
    int32_t expert;
};
static_assert(sizeof(Entry) == 48);

// `header` holds two words: number of entries, number of routes.
struct RoutingParams {
    const int32_t* ids;       // [tokens, top_k]; negative = no routing
    const uint8_t* padding;   // [tokens], nonzero = the row is padding and routes nowhere; or null
    const int32_t* slots;     // [experts], correction slot or -1; null = no correction
    const uint8_t* rows;      // [slots, row_bytes] correction rows
    long long* counts;        // [experts], += routings; or null
    unsigned long long* reads;  // [2], += entries that read the layer's planes and scales, entries that read its
                                // scales alone (codes from a correction row); null = not counted
    const uint8_t* planes13;  // [experts, planes13_bytes]
    const uint8_t* scales13;
    const uint8_t* planes2;
    const uint8_t* scales2;
    Entry* entries;           // out, room for min(experts, tokens * top_k) + tokens * top_k / chunk
    int32_t* header;          // out, [2]
    int32_t* routes;          // out, [tokens * top_k]: route = token * top_k + choice, grouped by expert
    int64_t planes13_bytes;   // bytes of one expert in each part
    int64_t scales13_bytes;
    int64_t planes2_bytes;
    int64_t scales2_bytes;
    int64_t row_bytes;        // of a correction row: gate and up codes, then down codes
    int64_t row_down_offset;  // where the down codes begin in a row
    int32_t tokens;
    int32_t top_k;
    int32_t experts;
    int32_t chunk;            // most routes an entry may have
};

// First GEMM: inner[i] = bf16(silu(min(gate, limit)) * clamp(up, -limit, limit)) for every route i of `routes`.
// Second GEMM: routed[route] = weight[route] * (inner[i] . down), float32: a third bfloat16 rounding on the way to
// the output would cost as much accuracy as the two that are left.
struct GemmParams {
    const Entry* entries;
    const int32_t* header;
    const int32_t* routes;
    const uint16_t* x;      // bf16; first GEMM: [tokens, cols]; second: inner [routes, cols], in the order of `routes`
    uint16_t* inner;        // out of the first GEMM: bf16 [routes, width]
    float* routed;          // out of the second: [tokens * top_k, hidden], by route
    const float* weights;   // [tokens, top_k]; second GEMM only
    int32_t cols;           // K: hidden for the first GEMM, width for the second
    int32_t out_cols;       // width for the first, hidden for the second
    int32_t top_k;
    int32_t max_entries;    // room in `entries`
    int32_t max_routes;     // tokens * top_k
    float limit;            // SwiGLU clamp, infinity for none; first GEMM only
};

// Adds a token's routes in the order of its choices, in float32.
struct CombineParams {
    const int32_t* ids;      // as in RoutingParams
    const uint8_t* padding;
    const float* routed;     // [tokens * top_k, hidden]
    uint16_t* out;           // bf16 [tokens, hidden]
    int32_t tokens;
    int32_t top_k;
    int32_t hidden;
    int32_t experts;
};

}  // namespace moet
