// A block of CUDA threads on one thread of a CPU, for the source of a kernel that is included after this file.
//
// The block's threads are coroutines that take turns until each has come to the next point where it waits for others:
// __syncthreads, or an instruction that a warp executes as one. A seed has them come in another order each time, half of
// the warps not at all, so that a result which needs a barrier that is not there comes out wrong.
//
// Who includes this says what __shared__ is.

#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads, blocks)

struct Index { uint32_t x; };
using std::max;
using std::min;

namespace host {

constexpr int kWarp = 32, kStackBytes = 64 << 10;

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    Index index;
    bool ended;
};

Index block_index, block_size, grid_size;
std::vector<Thread> threads;
Thread* running;
ucontext_t scheduler;
void (*body)();

void give_way() { swapcontext(&running->context, &scheduler); }

// Lets `members` threads on once all have come.
struct Barrier {
    int come = 0, round = 0;
    void wait(int members) {
        const int mine = round;
        if (++come == members) {
            come = 0;
            ++round;
        } else {
            while (round == mine) give_way();
        }
    }
};

using Words = std::array<uint32_t, 8>;
struct Warp {
    Barrier barrier;
    std::array<Words, kWarp> held;
};

Barrier block_barrier;
std::vector<Warp> warps;

int lane() { return running->index.x % kWarp; }
Warp& warp() { return warps[running->index.x / kWarp]; }

// What every lane of the warp holds.
std::array<Words, kWarp> gather(const Words& mine) {
    Warp& mates = warp();
    mates.held[lane()] = mine;
    mates.barrier.wait(kWarp);
    const auto all = mates.held;
    mates.barrier.wait(kWarp);
    return all;
}

void start() {
    body();
    running->ended = true;
}

void run_block(std::mt19937* order) {
    block_barrier = {};
    warps.assign(threads.size() / kWarp, {});
    for (Thread& thread : threads) {
        getcontext(&thread.context);
        thread.ended = false;
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = &scheduler;
        makecontext(&thread.context, start, 0);
    }
    std::vector<int> turns(threads.size());
    std::iota(turns.begin(), turns.end(), 0);
    for (bool more = true; more;) {
        more = false;
        const uint32_t resting = order ? (*order)() : 0;  // a bit for each warp
        if (order) std::shuffle(turns.begin(), turns.end(), *order);
        for (const int turn : turns) {
            Thread& thread = threads[turn];
            if (thread.ended) continue;
            more = true;
            if (resting >> turn / kWarp & 1) continue;
            running = &thread;
            swapcontext(&scheduler, &thread.context);
        }
    }
}

// Run `blocks` blocks one after another. Seed 0: threads take turns by their index.
void launch(void (*kernel)(), int blocks, int count, uint32_t seed = 0) {
    std::mt19937 order(seed);
    body = kernel;
    threads.resize(count);
    for (int i = 0; i < count; ++i) {
        threads[i].index = {uint32_t(i)};
        threads[i].stack.resize(kStackBytes);
    }
    block_size = {uint32_t(count)};
    grid_size = {uint32_t(blocks)};
    for (int i = 0; i < blocks; ++i) {
        block_index = {uint32_t(i)};
        run_block(seed ? &order : nullptr);
    }
}

}  // namespace host

#define blockIdx host::block_index
#define blockDim host::block_size
#define gridDim host::grid_size
#define threadIdx host::running->index

inline void __syncthreads() { host::block_barrier.wait(int(host::threads.size())); }
inline void __syncwarp() { host::warp().barrier.wait(host::kWarp); }
