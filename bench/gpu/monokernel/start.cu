// The smallest launch that asks of a GPU what the monokernel asks: every block holds its SM with
// all of its shared memory, and none goes on before all are there.
#include "start_params.h"

KERNEL(start, StartParams, 256) {
  u32* words = reinterpret_cast<u32*>(dynamic_shared());
  const u32 count = p.shared_bytes / 4;
  for (u32 i = thread_index(); i < count; i += block_threads()) {
    words[i] = i == 0 ? 0 : i * p.factor + block_index();
  }
  block_barrier();
  u32 sum = 0;
  // Not the words that a thread wrote itself.
  for (u32 i = thread_index() + 1; i < count; i += block_threads()) sum += words[i];
  shared_add(words, sum);
  block_barrier();
  if (thread_index() != 0) return;
  add_release(p.arrived, 1);
  const u64 begin = time_ns();
  while (load_acquire(p.arrived) != block_count()) {
    if (time_ns() - begin > p.patience_ns) {
      *p.late = 1;
      return;
    }
  }
  p.sums[block_index()] = words[0];
}
