// Where the blocks of a cluster run: all blocks of one cluster share a GPC, so many launches of
// clusters reveal which SMs belong together.
#include "params.h"
#include "primitives.cuh"

KERNEL(where_am_i, TopologyParams, 32) {
  if (thread_index() == 0) p.sm_of_block[block_index()] = sm_id();
  // Holds the SM for a while, so that the launch spreads over the whole device.
  u64 begin = clock_cycles();
  while (clock_cycles() - begin < p.hold_cycles) nap();
}
