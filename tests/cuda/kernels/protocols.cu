// The protocols that the monokernel is made of, each as small as it can be and right, or with one
// bug, by p.bug. The emulator must pass the former and find the latter.
#include "ring.cuh"

enum Bug : u32 {
  NO_BUG,
  MISSING_PUBLISH,   // one word of one round
  WRONG_STAMP,       // a round's words carry the next one's
  ONE_BUFFER,        // words are overwritten while others may not have read them
  HALF_CHECKED,      // only the first word of a pair is awaited
  MISSING_RELEASE,   // the counter's addition orders nothing
  MISSING_COLLECT,   // no barrier collects the block's stores before the release
  RELEASED_EARLY,    // a slot is given back before it has been read
  NOT_WAITED_FULL,   // a slot is read at once
  NOT_WAITED_EMPTY,  // a slot is filled at once
  OUT_OF_STEP,       // chunks are dealt to warps that do not divide the slots
  LEFT_IN_FLIGHT,    // the producer copies one chunk that nobody waits for
};

struct ProtocolParams {
  Word* words;     // [2][blocks * threads]
  u32* values;     // [2][blocks * threads]
  u32* counter;    // [1]
  const u8* from;  // [blocks][chunks][chunk_bytes]: word i is test_word(i, 1)
  u32* results;    // [2] wrong, checked
  u32* fault;      // [4]
  u64 watchdog;
  u32 rounds, chunks, chunk_bytes, slots, bug, pad;
};

DEVICE u32 round_word(u32 round, u32 index) { return test_word(index, round); }

DEVICE void report(const ProtocolParams& p, u32 wrong, u32 checked) {
  wrong = warp_sum(wrong);
  checked = warp_sum(checked);
  if (warp_thread() != 0) return;
  add_relaxed(p.results, wrong);
  add_relaxed(p.results + 1, checked);
}

// Every thread publishes a word a round, and every block needs those of all. Two buffers are
// enough: whoever publishes round r + 2 has all words of r + 1, whose publishers had read round r.
KERNEL(exchange, ProtocolParams, 96) {
  Watchdog dog = watchdog(p.fault, p.watchdog);
  u32 all = block_count() * block_threads(), wrong = 0, checked = 0;
  u32 own = block_index() * block_threads() + thread_index();
  for (u32 round = 0; round < p.rounds; ++round) {
    Word* now = p.words + (p.bug == ONE_BUFFER ? 0 : round % 2 * all);
    u32 stamp = round + 1;
    bool skipped = p.bug == MISSING_PUBLISH && round == 3 && own == 40;
    if (!skipped) publish(now + own, round_word(round, own), stamp + (p.bug == WRONG_STAMP));
    for (u32 i = 2 * thread_index(); i < all; i += 2 * block_threads()) {
      WordPair got = load_pair(now + i);
      while (got.a.stamp != stamp || (p.bug != HALF_CHECKED && got.b.stamp != stamp)) {
        if (starved(dog, WAIT_SENTINEL, i)) return;
        got = load_pair(now + i);
      }
      wrong += got.a.value != round_word(round, i);
      wrong += got.b.value != round_word(round, i + 1);
      checked += 2;
    }
    block_barrier();  // all of the block's loads are over before its next publish
  }
  report(p, wrong, checked);
}

// The same by one counter: plain words, one release and one acquire per block.
KERNEL(count, ProtocolParams, 96) {
  Watchdog dog = watchdog(p.fault, p.watchdog);
  u32* failed = reinterpret_cast<u32*>(dynamic_shared());
  u32 all = block_count() * block_threads(), wrong = 0, checked = 0;
  u32 own = block_index() * block_threads() + thread_index();
  if (thread_index() == 0) *failed = 0;
  block_barrier();  // publishes the cleared flag
  for (u32 round = 0; round < p.rounds; ++round) {
    u32* now = p.values + round % 2 * all;
    store_relaxed(now + own, round_word(round, own));
    if (p.bug != MISSING_COLLECT) block_barrier();  // collects the block's stores for the release
    if (thread_index() == 0) {
      if (p.bug == MISSING_RELEASE) {
        add_relaxed(p.counter, 1);
      } else {
        add_release(p.counter, 1);
      }
      while (load_acquire(p.counter) < (round + 1) * block_count()) {
        if (starved(dog, WAIT_COUNTER, round)) {
          shared_poke(failed, 1);
          break;
        }
      }
    }
    block_barrier();  // hands the acquire to all threads
    if (shared_peek(failed)) return;
    for (u32 i = thread_index(); i < all; i += block_threads()) {
      wrong += load_relaxed(now + i) != round_word(round, i);
      checked += 1;
    }
    block_barrier();  // all loads are over before the next release says so
  }
  report(p, wrong, checked);
}

// Warp 0 streams the block's chunks through the ring, the other warps all read all of them.
KERNEL(stream, ProtocolParams, 128) {
  Watchdog dog = watchdog(p.fault, p.watchdog);
  u32 readers = block_threads() / 32 - 1;
  Ring ring = ring_at(dynamic_shared(), p.slots, p.chunk_bytes);
  if (thread_index() == 0) ring_init(ring, p.bug == OUT_OF_STEP ? 1 : readers, STREAM_ARRIVALS);
  block_barrier();  // publishes the initialised barriers
  RingCursor at{0, 0};
  u32 words = p.chunk_bytes / 4;
  u32 first = block_index() * p.chunks * words;
  if (warp_index() == 0) {
    u64 policy = policy_evict_first();
    for (u32 i = 0; i < p.chunks + (p.bug == LEFT_IN_FLIGHT); ++i) {
      const u8* from = p.from + (first + i % p.chunks * words) * 4;
      if (p.bug == NOT_WAITED_EMPTY) {
        stream_chunk(ring.slots + at.slot * ring.bytes, from, ring.bytes, ring.full + at.slot,
                     policy);
      } else if (!ring_stream(ring, at, from, ring.bytes, policy, dog)) {
        return;
      }
      ring_advance(at, ring, 1);
    }
    return;
  }
  u32 step = p.bug == OUT_OF_STEP ? readers : 1, wrong = 0, checked = 0;
  u32 begin = p.bug == OUT_OF_STEP ? warp_index() - 1 : 0;
  ring_advance(at, ring, begin);
  for (u32 i = begin; i < p.chunks; i += step) {
    if (p.bug != NOT_WAITED_FULL && !ring_wait_warp(ring, at, dog)) return;
    if (p.bug == RELEASED_EARLY) ring_release(ring, at);
    const u32* slot = reinterpret_cast<const u32*>(ring.slots + at.slot * ring.bytes);
    for (u32 k = warp_thread(); k < words; k += 32) {
      wrong += slot[k] != test_word(first + i * words + k, 1);
      checked += 1;
    }
    if (p.bug != RELEASED_EARLY) ring_release(ring, at);
    ring_advance(at, ring, step);
  }
  report(p, wrong, checked);
}

#ifdef MONOLANE_EMULATED
__attribute__((noinline)) static u32 descend(u32 levels) {
  volatile u8 deep[1024];
  for (u32 i = 0; i < sizeof(deep); i += 64) deep[i] = static_cast<u8>(levels);
  return levels == 0 ? deep[0] : descend(levels - 1) + deep[64];
}
#else
DEVICE u32 descend(u32) { return 0; }
#endif

// ---- what no kernel may do, by p.rounds --------------------------------------------------------
KERNEL(misuse, ProtocolParams, 96) {
  u8* shared = dynamic_shared();
  u64* barrier = reinterpret_cast<u64*>(shared);
  u32 lane = warp_thread();
  switch (p.rounds) {
    case 0:  // two warps meet, the third never comes
      if (warp_index() < 2) block_barrier();
      break;
    case 1:  // lanes of one warp at two barriers
      named_barrier(lane < 16 ? 1 : 2, 96);
      break;
    case 2:  // half a warp shuffles, the other half waits at a barrier
      if (lane < 16) {
        shuffle_xor(lane, 1);
      } else {
        block_barrier();
      }
      break;
    case 3:
      if (lane < 16) {
        warp_all(true);
      } else {
        warp_barrier();
      }
      break;
    case 4:
      barrier_arrive(barrier);
      break;
    case 5:
      if (thread_index() == 0) {
        barrier_init(barrier, 1);
        barrier_init(barrier + 1, 2);
        barrier_arrive(barrier + 1);
        barrier_arrive(barrier + 1);
        while (!barrier_passed(barrier, 0)) {  // nobody will arrive
        }
      }
      break;
    case 6:
      shared[p.slots] = 1;  // one byte too far
      break;
    case 7:
    case 8:
      if (thread_index() == 0) barrier_init(barrier, STREAM_ARRIVALS);
      block_barrier();  // publishes the barrier
      if (warp_index() != 0) break;
      if (p.rounds == 7) stream_chunk(shared + p.slots - 16, p.from, 32, barrier, 0);
      if (p.rounds == 8) stream_chunk(shared + 8, p.from, 16, barrier, 0);
      break;
    case 9:
      named_barrier(1, warp_index() == 0 ? 96 : 64);
      break;
    case 10:  // shared memory begins as NaNs
      if (thread_index() < p.slots / 4) {
        float value = *reinterpret_cast<float*>(shared + 4 * thread_index());
        add_relaxed(p.results, value == value);
        add_relaxed(p.results + 1, 1);
      }
      break;
    case 11:  // a word that the host writes
      while (load_host(p.counter) == 0) nap();
      add_relaxed(p.results + 1, load_host(p.counter));
      break;
    case 13: {  // all wait for the clock, and then for each other
      Watchdog dog = watchdog(p.fault, p.watchdog);
      u64 begin = clock_cycles();
      while (clock_cycles() - begin < p.watchdog / 4) nap();
      add_relaxed(p.counter, 1);
      while (load_relaxed(p.counter) < 96 * block_count()) {
        if (starved(dog, WAIT_COUNTER, 0)) return;
      }
      add_relaxed(p.results + 1, 1);
      break;
    }
    case 12:
      if (thread_index() == 0) add_relaxed(p.results, descend(50));  // KiB of stack
      break;
  }
}
