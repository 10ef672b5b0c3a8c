// Rows of a matrix of 16-bit patterns into the blocks' runs of tiles, on the device. A matrix comes
// in pieces of whole rows, from a staging buffer.
//
// One thread takes two neighbouring columns of a row, which stay neighbours in the tile: 4 bytes.
// Reads are whole lines; writes are 4 bytes apart by 8, and meet in L2.
#include "pack.cuh"

KERNEL(pack, PackParams, 256) {
  const u32 pairs = (p.columns + 1) / 2;
  const u64 count = static_cast<u64>(p.rows) * pairs;
  const u64 step = static_cast<u64>(block_count()) * block_threads();
  for (u64 i = static_cast<u64>(block_index()) * block_threads() + thread_index(); i < count;
       i += step) {
    const u32 r = static_cast<u32>(i / pairs), c = static_cast<u32>(i % pairs) * 2;
    const u16* from = p.from + static_cast<u64>(r) * p.columns + c;
    // An odd last column has no neighbour: a zero stands there.
    const u32 value = from[0] | (c + 1 < p.columns ? static_cast<u32>(from[1]) << 16 : 0);
    const Place place = p.places[r];
    const u32 row = place.row % TILE, word = c % 4 / 2 * 2 + row / 8;
    u32* run = reinterpret_cast<u32*>(p.to + place.worker * p.run_bytes);
    run[tile_of(p, place, c) * (TILE * TILE / 2) + tile_thread(row, c) * 4 + word] = value;
  }
}
