// Shared memory by 32-bit address, and asynchronous copies into it, 16 bytes a thread, past the first-level cache
// (PTX ISA, cp.async; sm_80 and later). Through C++ pointers the compiler works the same addresses out again for
// every access, in a loop that has no instruction to spare.

#pragma once

#include <cstdint>

namespace moet {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint4 read_shared16(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
    return v;
}

__device__ __forceinline__ uint32_t read_shared4(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

__device__ __forceinline__ void write_shared16(uint32_t address, const uint4& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

__device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Close a group of copies. Groups complete in order.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `Pending` of this thread's groups are on their way.
template <int Pending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace moet
