// Two GPUs that answer each other's stamped words, one thread each: how long a word is on its way.
// Stores and loads as the monokernel's between devices: with system scope, polled at home.
#include "ping_params.h"

KERNEL(ping, PingParams, 32) {
  if (thread_index() != 0) return;
  const u64 start = time_ns();
  u64 begin = start;
  for (u32 round = 1; round <= p.warm_up + p.rounds; ++round) {
    if (p.first) publish_system(p.theirs, 0, round);
    while (load_word_system(p.mine).stamp != round) {
      if (time_ns() - start > p.patience_ns) {
        *p.late = round;
        return;
      }
    }
    if (!p.first) publish_system(p.theirs, 0, round);
    if (round == p.warm_up) begin = time_ns();
  }
  *p.elapsed = time_ns() - begin;
}
