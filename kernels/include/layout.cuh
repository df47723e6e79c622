// How weights lie in memory, and how a lane turns what it loads into matrix operands.
//
// A weight matrix [N, K] is cut into tiles that one warp reads with one 16-byte load a lane. Tiles follow each
// other along K first, then along N. Weights are the A operand (16 rows) of mma.m16n8k16; lane = 4 g + t.
// The instruction asks lane (g, t) for rows g and g + 8 at four columns of each step. Which columns those are is
// free as long as B agrees, so lane t takes eight neighbours, 8t .. 8t+7, of every scale block of 32 columns:
// its share of B is then one 16-byte load of the activations in their natural order.
//
//        columns of a scale block    0     7 8    15 16   23 24   31
//                                   | t = 0 | t = 1 | t = 2 | t = 3 |
//        column within a lane        2q + h:   pair q = 0..3, half h = 0, 1
//        instruction of the block    q = 0, 1: step 0      q = 2, 3: step 1
//
// Planes (2 bits): a tile is 16 rows x 128 columns, 512 bytes; word j of a lane is scale block j. A weight is a
// sign bit s (1 = negative) and a magnitude bit m (0 = 1, 1 = 4). Bits 0-15 of a word hold the columns with
// h = 0, bits 16-31 those with h = 1, both in this order (G: row g, H: row g + 8, the digit is q):
//
//        bit     15  14  13  12  11  10   9   8   7   6   5   4   3   2   1   0
//        sign    G0      H0      G1      H1      G2      H2      G3      H3
//        magn.       H2      G3      H3      G0      H0      G1      H1      G2
//
// A weight's magnitude bit lies 7 below its sign, as the exponent's second bit lies below the sign of a bfloat16,
// or does so once the bytes of each half are swapped. So one AND takes a pair of weights out of a word, and one
// multiply-add moves it into place and adds the block's exponent, which also applies the scale:
//
//        pair = (word & mask) * 2^k + exponent * 0x00800080      value = +-2^(exponent - 127) * (1 or 4)
//
// FP4 codes (4 bits): a tile is 16 rows x 64 columns, 512 bytes; word 2j + s of a lane is step s of scale block
// j. Nibble i of a half is the checkpoint's e2m1 code of row g + 8 * (i & 1), pair q = 2s + (i >> 1).
//
// Scales (UE8M0): 64 bytes for each 16 rows x 128 columns, at 8 g + 4 * (row >= 8) + j.
