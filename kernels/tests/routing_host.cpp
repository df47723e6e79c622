// Runs the routing kernel on a CPU, thread by thread: the source itself, with what only a GPU has put here.

#include "host_block.hpp"

#define __shared__ thread_local  // one object for all coroutines of a thread, in a function and as extern

inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __ffs(uint32_t bits) { return __builtin_ffs(int(bits)); }

inline int __shfl_up_sync(uint32_t, int value, int delta) {
    const int from = host::lane() - delta;
    return int(host::gather({uint32_t(value)})[from < 0 ? host::lane() : from][0]);
}

inline uint32_t __match_any_sync(uint32_t, int value) {
    const auto all = host::gather({uint32_t(value)});
    uint32_t same = 0;
    for (int i = 0; i < host::kWarp; ++i) same |= uint32_t(all[i][0] == uint32_t(value)) << i;
    return same;
}

template <class T>
T atomicAdd(T* address, T value) {
    const T before = *address;
    *address = before + value;
    return before;
}
inline unsigned long long atomicAdd(unsigned long long* address, int value) {
    return atomicAdd(address, static_cast<unsigned long long>(value));
}

thread_local uint16_t next[32 * 1024];  // the block's dynamic shared memory, for the most warps and experts

#include "../src/routing.cu"

namespace {
moet::RoutingParams params;
}

extern "C" void run(const moet::RoutingParams* given, int threads, uint32_t seed) {
    params = *given;
    host::launch([] { moet_routing(params); }, 1, threads, seed);
}
