// The smallest kernels, for launch latency, graph replay and programmatic dependent launch. Every
// block adds one to its own word without an atomic: two overlapping nodes would lose an addition,
// and the sum after n nodes proves that n ran, one after the other.
#include "params.h"
#include "primitives.cuh"

// Past L1: with overlapping kernels a line cached for the predecessor may be older than its end.
DEVICE void count_step(const LaunchParams& p) {
  if (thread_index() != 0) return;
  store_relaxed(p.counts + block_index(), load_relaxed(p.counts + block_index()) + 1);
}

DEVICE void work(const LaunchParams& p) {
  u64 begin = clock_cycles();
  while (clock_cycles() - begin < p.work_cycles) {
  }
}

KERNEL(chain_step, LaunchParams, 128) {
  work(p);
  count_step(p);
}

#if HOPPER
// The same step, allowed to start before its predecessor has ended: what it may do early (here
// nothing but being scheduled) comes before the wait, what needs the predecessor's writes after.
KERNEL(chain_step_dependent, LaunchParams, 128) {
  let_next_kernel_start();
  wait_for_previous_kernel();  // publishes the predecessor's addition; guards the one below
  work(p);
  count_step(p);
}
#endif

// Tells the host that it runs.
KERNEL(raise_flag, LaunchParams, 32) {
  if (thread_index() == 0 && block_index() == 0) store_relaxed_system(p.counts, p.flag_value);
}
