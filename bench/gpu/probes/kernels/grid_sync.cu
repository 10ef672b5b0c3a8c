// The whole-grid barrier of cooperative groups, as the toolkit ships it: the yardstick for the
// waits of waits.cu. The only probe that needs the toolkit's headers.
#ifndef MONOLANE_EMULATED
#include <cooperative_groups.h>
#endif
#include "params.h"
#include "primitives.cuh"

DEVICE void whole_grid_barrier() {
#ifdef MONOLANE_EMULATED
  emulated_grid_barrier();
#else
  cooperative_groups::this_grid().sync();
#endif
}

// Each block publishes one word a round; thread t reads that of block t.
KERNEL(grid_sync, GridSyncParams, 256) {
  u32 wrong = 0, checked = 0;
  u64 begin_cycles = clock_cycles(), begin_ns = time_ns();
  for (u32 round = 0; round < p.rounds; ++round) {
    u32* now = p.words + (round & 1) * block_count();
    block_barrier();  // the block starts the round together
    u64 start = clock_cycles();
    if (thread_index() == 0) store_relaxed(now + block_index(), test_word(round, block_index()));
    whole_grid_barrier();  // publishes every block's word; guards the loads below
    u32 got = thread_index() < block_count() ? load_relaxed(now + thread_index()) : 0;
    block_barrier();  // every thread has its word
    if (thread_index() == 0) {
      p.log[static_cast<u64>(block_index()) * p.rounds + round] =
          static_cast<u32>(clock_cycles() - start);
    }
    if (thread_index() < block_count()) {
      checked += 1;
      wrong += got != test_word(round, thread_index());
    }
  }
  if (thread_index() == 0) {
    p.totals[block_index() * 4 + 0] = clock_cycles() - begin_cycles;
    p.totals[block_index() * 4 + 1] = time_ns() - begin_ns;
    p.totals[block_index() * 4 + 2] = 0;
    p.totals[block_index() * 4 + 3] = sm_id();
  }
  wrong = warp_sum(wrong);
  checked = warp_sum(checked);
  if (warp_thread() == 0) {
    add_relaxed(p.results + 0, wrong);
    add_relaxed(p.results + 1, checked);
  }
}
