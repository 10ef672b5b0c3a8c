// The same into tiles of e4m3: each row divided by its scale, which is its largest size over the
// format's largest, 448, and rounded once. round_to_e4m3 in monolane.cuda._pack is the twin, bit
// for bit.
//
// One warp takes a row, so that nobody else needs to know its largest; it reads the row twice, the
// second time from L1 or L2. A thread writes four columns at a time.
#include "pack.cuh"

DEVICE f32 weight_at(const PackParams& p, u32 r, u32 c) {
  if (c >= p.columns) return 0.0f;
  const u32 bits = p.from[static_cast<u64>(r) * p.columns + c];
  return p.from_bfloat16 ? bf16_low(bits) : f16_low(bits);
}

KERNEL(pack_float8, PackParams, 256) {
  const u32 thread = warp_thread(), warps = block_threads() / 32;
  for (u32 r = block_index() * warps + warp_index(); r < p.rows; r += block_count() * warps) {
    u32 largest = 0;  // sizes order as their bits do
    for (u32 c = thread; c < p.columns; c += 32) {
      const u32 size = bits_of_float(weight_at(p, r, c)) & 0x7fffffffu;
      largest = size > largest ? size : largest;
    }
    for (u32 mask = 16; mask; mask >>= 1) {
      const u32 other = shuffle_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
    const f32 quotient = divide(float_of_bits(largest), 448.0f);
    const f32 scale = quotient > 0.0f ? quotient : 1.0f;
    const Place place = p.places[r];
    if (thread == 0) p.scales[place.worker * p.scale_rows + place.row] = scale;
    const u32 row = place.row % TILE;
    u32* run = reinterpret_cast<u32*>(p.to + place.worker * p.run_bytes);
    for (u32 c = 4 * thread; c < p.columns; c += 4 * 32) {
      u32 word = 0;
      for (u32 i = 0; i < 4; ++i) {
        word |= e4m3_of_float(divide(weight_at(p, r, c + i), scale)) << (8 * i);
      }
      run[tile_of(p, place, c) * (TILE * TILE / 4) + tile_thread(row, c) * 2 + row / 8] = word;
    }
  }
}
