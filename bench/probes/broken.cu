// Three mistakes, one for each checker of bench/sanitize.sh to find: a checker that passes this is not checking.

#include <cstdint>

extern "C" __global__ void broken(int mistake, int* words, int count) {
    __shared__ int shared[64];
    const int thread = threadIdx.x;
    if (mistake == 0) {
        words[count + thread] = thread;  // memcheck: a write behind the allocation
    } else if (mistake == 1) {
        shared[thread] = thread;  // racecheck: no barrier before another thread's value is read
        words[thread] = shared[63 - thread];
    } else {
        words[thread] += 1;  // initcheck: a read of memory that nobody wrote
    }
}
