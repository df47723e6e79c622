// What the host hands to the kernels of quantize.cu, one struct a kernel, passed by value.
//
// runtime_ext/src/moet_w2/kernels/quantize.py mirrors these structs with ctypes. Pointers are device addresses, all
// aligned to 16 bytes; a mapped layer's are those of its host memory.

#pragma once

#include <cstdint>

namespace moet {

// Zeros of one block's part of a tensor, and how many of them are negative.
struct ZeroCounts {
    uint32_t zeros;
    uint32_t negative;
};

struct CountParams {
    const uint8_t* codes;  // MXFP4 codes of the whole tensor, as in the checkpoint
    ZeroCounts* counts;    // out, [blocks]
    int64_t vectors;       // the tensor's bytes / 16
};

// The source is this rank's share: `source` points to its first row and column, rows lie `row_bytes` apart. A share
// begins at an even row and an even column of the tensor, so a zero's place in the checkerboard is that in the share.
struct PackParams {
    const uint8_t* source;     // MXFP4 codes, two a byte, or UE8M0 bytes
    uint8_t* out;              // planes, FP4 codes or scales, fragment-major; each byte is written once
    const ZeroCounts* counts;  // [count_blocks], of the whole tensor; planes only
    int64_t row_bytes;         // from one row of the source to the next
    int32_t tiles_n;           // rows of the share / 16
    int32_t tiles_k;           // columns of the share / 128
    int32_t count_blocks;
};

}  // namespace moet
