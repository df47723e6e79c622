// Runs the kernels of decode_bs.cu on a CPU, thread by thread: the source itself, with what only a GPU has put here.
//
// The block-scaled instruction is computed from what each lane holds, by the fragment layouts and the scale selectors
// that the PTX ISA gives ("Matrix Fragments for mma with .m16n8k32", "Block Scaling for mma.sync"), in double precision.

#include <cmath>
#include <cstring>
#include <limits>

#include "host_block.hpp"

#define __shared__  // only with extern: `sums` below

struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

namespace host {

double decoded(uint32_t byte) {
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
    const double magnitude = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
    return byte & 128 ? -magnitude : magnitude;
}

const std::array<double, 256> e4m3 = [] {
    std::array<double, 256> values;
    for (uint32_t byte = 0; byte < 256; ++byte) values[byte] = decoded(byte);
    return values;
}();

// To the nearest, of two that are as near to the one with an even last bit; beyond +-448 to that.
uint32_t to_e4m3(float value) {
    if (std::isnan(value)) return 127;
    const double magnitude = std::abs(double(value));
    uint32_t above = 0;
    while (above < 126 && e4m3[above] < magnitude) ++above;
    const uint32_t below = above ? above - 1 : 0;
    const double up = e4m3[above] - magnitude, down = magnitude - e4m3[below];
    const uint32_t nearest = down < up || (down == up && below % 2 == 0) ? below : above;
    return nearest | (std::signbit(value) ? 128 : 0);
}

double ue8m0(uint32_t byte) {
    return byte == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, int(byte) - 127);
}

uint32_t byte_at(uint32_t word, int index) { return word >> 8 * index & 255; }

}  // namespace host

inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int mask) {
    return host::gather({value})[host::lane() ^ mask][0];
}
template <class T>
T __ldg(const T* address) { return *address; }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t bytes = uint64_t(high) << 32 | low;
    uint32_t picked = 0;
    for (int i = 0; i < 4; ++i) picked |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return picked;
}
inline float __uint_as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }

// Functions of the headers that are one instruction of PTX get another name and are never called.
#define load_stream ptx_load_stream
#define to_bf16 ptx_to_bf16
#define mma_block_scaled ptx_mma_block_scaled
#define to_e4m3_pair ptx_to_e4m3_pair
#include "../include/mma.cuh"
#include "../include/mma_bs.cuh"
#undef load_stream
#undef to_bf16
#undef mma_block_scaled
#undef to_e4m3_pair

namespace moet {

inline uint4 load_stream(const void* address) { return *static_cast<const uint4*>(address); }

inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline uint32_t to_e4m3_pair(float low, float high) { return host::to_e4m3(low) | host::to_e4m3(high) << 8; }

template <int Byte>
void mma_block_scaled(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], uint32_t scales_a,
                      uint32_t scales_b) {
    const auto all = host::gather({a[0], a[1], a[2], a[3], b[0], b[1], scales_a, scales_b});
    const int g = host::lane() / 4, t = host::lane() % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = g + i / 2 * 8, col = 2 * t + i % 2;
        double sum = 0;
        for (int k = 0; k < 32; ++k) {
            const int from = k % 16 / 4;  // of the four lanes that share a row of A or a column of B
            const uint32_t weights = all[row % 8 * 4 + from][row / 8 + k / 16 * 2];
            const uint32_t tokens = all[col * 4 + from][4 + k / 16];
            sum += host::e4m3[host::byte_at(weights, k % 4)] * host::e4m3[host::byte_at(tokens, k % 4)];
        }
        const double scale_a = host::ue8m0(host::byte_at(all[row % 8 * 4 + row / 8][6], Byte));
        const double scale_b = host::ue8m0(host::byte_at(all[col * 4][7], Byte));
        d[i] = float(d[i] + sum * scale_a * scale_b);
    }
}

namespace {
float4 sums[4 * 4 * 32];  // the block's shared memory
}

}  // namespace moet

#include "../src/decode_bs.cu"

namespace {
moet::GemmParams params;
}

extern "C" void run(int number, const moet::GemmParams* given, int blocks, int threads) {
    params = *given;
    host::launch(number == 13 ? +[] { moet_decode13_n8_bs(params); } : +[] { moet_decode2_n8_bs(params); }, blocks,
                 threads);
}
