// Programmatic dependent launch (sm_90 and later): a kernel may start while its predecessor still runs.
//
// Each kernel of the chain routing -> first GEMM -> second GEMM -> combine calls depend() in every block, and
// release() only after it. So when a kernel starts, everything before its predecessor is complete and visible;
// the predecessor's own output is so after depend(). Elsewhere both do nothing and kernels follow each other.

#pragma once

namespace moet {

__device__ __forceinline__ void depend() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace moet
