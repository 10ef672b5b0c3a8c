// Many matrix products of 16 x 16 by 16 x 8, one a warp at a time, each with its addend: what the
// matrix unit makes of sums, to be compared with what is published (_matrix_unit.py).
#include "params.h"
#include "primitives.cuh"

KERNEL(matrix_unit, MatrixUnitParams, 256) {
  const u32 warps = block_threads() / 32, lane = warp_thread();
  for (u64 tile = block_index() * warps + warp_index(); tile < p.tiles;
       tile += static_cast<u64>(block_count()) * warps) {
    const u32* from = p.fragments + tile * 320 + lane;  // [10][32] words of A, B and the addend
    const Vec4 a{from[0], from[32], from[64], from[96]};
    float c[4];
    for (u32 i = 0; i < 4; ++i) c[i] = float_of_bits(from[(6 + i) * 32]);
    if (p.half != 0) {
      mma_f16(c, a, from[128], from[160]);
    } else {
      mma_bf16(c, a, from[128], from[160]);
    }
    for (u32 i = 0; i < 4; ++i) p.out[tile * 128 + i * 32 + lane] = bits_of_float(c[i]);
  }
}
