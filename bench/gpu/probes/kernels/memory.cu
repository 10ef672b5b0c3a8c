// Filling and checking of the test buffer. The fill reports the sum of every granule from the
// registers that produced it, so a later reader's sum is compared with something it did not read.
#include "params.h"
#include "primitives.cuh"

// One granule (p.granule_words words, a multiple of 4 * 256) per loop step of a block.
KERNEL(fill_words, FillParams, 256) {
  u32* block_sum = reinterpret_cast<u32*>(dynamic_shared());
  for (u64 granule = block_index(); granule < p.granules; granule += block_count()) {
    if (thread_index() == 0) *block_sum = 0;
    block_barrier();  // publishes the cleared sum; guards the adds below
    u32 sum = 0;
    u64 first = granule * p.granule_words;
    for (u32 i = thread_index() * 4; i < p.granule_words; i += block_threads() * 4) {
      Vec4 v{test_word(first + i, p.seed), test_word(first + i + 1, p.seed),
             test_word(first + i + 2, p.seed), test_word(first + i + 3, p.seed)};
      store_once(reinterpret_cast<Vec4*>(p.words + first + i), v);
      sum += v.x + v.y + v.z + v.w;
    }
    sum = warp_sum(sum);
    if (warp_thread() == 0) add_relaxed(block_sum, sum);
    block_barrier();  // publishes the adds; guards the read below
    if (thread_index() == 0) p.granule_sums[granule] = *block_sum;
    block_barrier();  // guards that read against the next step's clearing
  }
}

// The plain reader that checks copies: sum of p.granules granules, one result per granule.
KERNEL(sum_words, FillParams, 256) {
  u32* block_sum = reinterpret_cast<u32*>(dynamic_shared());
  for (u64 granule = block_index(); granule < p.granules; granule += block_count()) {
    if (thread_index() == 0) *block_sum = 0;
    block_barrier();  // publishes the cleared sum; guards the adds below
    u32 sum = 0;
    u64 first = granule * p.granule_words;
    for (u32 i = thread_index() * 4; i < p.granule_words; i += block_threads() * 4) {
      Vec4 v = *reinterpret_cast<const Vec4*>(p.words + first + i);
      sum += v.x + v.y + v.z + v.w;
    }
    sum = warp_sum(sum);
    if (warp_thread() == 0) add_relaxed(block_sum, sum);
    block_barrier();  // publishes the adds; guards the read below
    if (thread_index() == 0) p.granule_sums[granule] = *block_sum;
    block_barrier();  // guards that read against the next step's clearing
  }
}

// Repeats a pattern of p.pattern_vectors 16-byte vectors over the buffer.
KERNEL(repeat_pattern, RepeatParams, 256) {
  u64 step = static_cast<u64>(block_count()) * block_threads();
  u64 i = static_cast<u64>(block_index()) * block_threads() + thread_index();
  u64 source = i % p.pattern_vectors;
  u64 source_step = step % p.pattern_vectors;
  for (; i < p.vectors; i += step) {
    store_once(p.to + i, p.pattern[source]);
    source += source_step;
    if (source >= p.pattern_vectors) source -= p.pattern_vectors;
  }
}
