// Where a weight lies in the blocks' runs of tiles: the twin of monolane.cuda._pack, which says
// what lies where and why.
#pragma once
#include "pack_params.h"
#include "primitives.cuh"

constexpr u32 TILE = 16;  // rows and columns

// Number, in the run, of the tile that holds column c of a row.
DEVICE u64 tile_of(const PackParams& p, const Place& place, u32 c) {
  const u32 row_tile = place.row / TILE, column_tile = c / TILE, depth = p.step * p.steps;
  const u32 part = column_tile / depth, k = column_tile % depth;
  const u32 unit = row_tile / p.group * p.parts + part;
  const u32 round = unit / p.warps, warp = unit % p.warps;
  const u64 slot = static_cast<u64>(round) * p.steps + k / p.step;
  return ((slot * p.warps + warp) * p.step + k % p.step) * p.group + row_tile % p.group;
}

// Thread 4 g + q of a warp holds columns 4 q .. 4 q + 3 of the rows g and g + 8 of a tile.
DEVICE u32 tile_thread(u32 row, u32 c) { return row % 8 * 4 + c % TILE / 4; }
