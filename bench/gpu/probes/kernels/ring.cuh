// A ring of shared-memory slots between one warp that copies from global memory and the warps that
// read: the producer runs ahead until every slot is taken. Also the background stream that loads
// the memory system while a probe measures waits. For probes: their rings have any number of slots
// of any size, given at run time. The monokernel's, of constants, is in weights.cuh.
//
// Either all reading warps take every slot, or chunk k belongs to warp k % readers
// and then readers must divide the slots, so that a slot always meets the same warp (the probes): a
// parity wait cannot tell a phase from the one two laps away, and copies land out of order, so a
// warp that had not itself seen the slot's previous lap could pass a wait for the next lap before
// the previous one has landed.
#pragma once
#include "primitives.cuh"

struct Ring {
  u8* slots;   // [count][bytes]
  u64* full;   // [count] the producer's arrivals + the bytes of a bulk copy
  u64* empty;  // [count] one arrival per reading warp
  u32 count;
  u32 bytes;  // of a slot
};

// Shared memory of a ring: the slots, then both barrier arrays. The host computes the same sum.
DEVICE u32 ring_footprint(u32 count, u32 bytes) { return count * bytes + count * 16; }

DEVICE Ring ring_at(u8* shared, u32 count, u32 bytes) {
  u64* barriers = reinterpret_cast<u64*>(shared + count * bytes);
  return Ring{shared, barriers, barriers + count, count, bytes};
}

// By one thread; a block barrier must follow, which publishes the barriers to the other warps.
// `arrivals` is 1 where one thread fills (ring_fill), STREAM_ARRIVALS where a warp does
// (ring_stream).
DEVICE void ring_init(const Ring& ring, u32 readers, u32 arrivals = 1) {
  for (u32 i = 0; i < ring.count; ++i) {
    barrier_init(ring.full + i, arrivals);
    barrier_init(ring.empty + i, readers);
  }
  barrier_init_fence();
}

// A place in the ring: slot and the parity of the round, advanced without a division.
struct RingCursor {
  u32 slot;
  u32 parity;
};
DEVICE void ring_advance(RingCursor& at, const Ring& ring, u32 by) {
  at.slot += by;
  while (at.slot >= ring.count) {
    at.slot -= ring.count;
    at.parity ^= 1;
  }
}

// The readers have left the slot: guards a copy's writes against their last loads, which their
// arrivals on `empty` publish.
DEVICE bool ring_wait_empty(const Ring& ring, const RingCursor& at, const Watchdog& dog) {
  while (!barrier_passed(ring.empty + at.slot, at.parity ^ 1)) {
    if (starved(dog, WAIT_RING_EMPTY, at.slot)) return false;
  }
  return true;
}

// A whole warp as the producer, on every architecture: `bytes` of the slot, a multiple of 16.
DEVICE bool ring_stream(const Ring& ring, const RingCursor& at, const u8* from, u32 bytes,
                        u64 policy, const Watchdog& dog) {
  if (!warp_all(ring_wait_empty(ring, at, dog))) return false;
  stream_chunk(ring.slots + at.slot * ring.bytes, from, bytes, ring.full + at.slot, policy);
  return true;
}

#if HOPPER
// One thread as the producer.
DEVICE bool ring_fill(const Ring& ring, const RingCursor& at, const u8* from, bool evict_first,
                      u64 policy, const Watchdog& dog) {
  if (!ring_wait_empty(ring, at, dog)) return false;
  barrier_expect(ring.full + at.slot, ring.bytes);
  u8* to = ring.slots + at.slot * ring.bytes;
  if (evict_first) {
    bulk_load(to, from, ring.bytes, ring.full + at.slot, policy);
  } else {
    bulk_load_default(to, from, ring.bytes, ring.full + at.slot);
  }
  return true;
}

// By the producer of `issued` chunks before it leaves: a block must not end while copies into its
// shared memory are in flight, and readers that gave up have not waited for them. Every copy lands,
// so there is no watchdog; of each slot the last may be on its way.
DEVICE void ring_drain(const Ring& ring, u64 issued) {
  for (u64 k = issued > ring.count ? issued - ring.count : 0; k < issued; ++k) {
    while (!barrier_passed(ring.full + k % ring.count, static_cast<u32>(k / ring.count & 1))) {
    }
  }
}
#endif

// Reader: passing `full` makes the copy engine's writes of this slot visible to the loads after it.
DEVICE bool ring_wait(const Ring& ring, const RingCursor& at, const Watchdog& dog) {
  while (!barrier_passed(ring.full + at.slot, at.parity)) {
    if (starved(dog, WAIT_RING_FULL, at.slot)) return false;
  }
  return true;
}

// The same by a whole warp, which also agrees about it: threads that went apart when a watchdog
// fires would meet at different warp barriers.
DEVICE bool ring_wait_warp(const Ring& ring, const RingCursor& at, const Watchdog& dog) {
  return warp_all(ring_wait(ring, at, dog));
}

// By a whole warp: the warp barrier collects its threads' loads, the arrival hands the slot back.
DEVICE void ring_release(const Ring& ring, const RingCursor& at) {
  warp_barrier();
  if (warp_thread() == 0) barrier_arrive(ring.empty + at.slot);
}

DEVICE u32 slot_sum(const Ring& ring, u32 slot) {  // this thread's share of the slot's words
  const Vec4* words = reinterpret_cast<const Vec4*>(ring.slots + slot * ring.bytes);
  u32 sum = 0;
#pragma unroll 4
  for (u32 i = warp_thread(); i < ring.bytes / 16; i += 32) {
    Vec4 v = words[i];
    sum += v.x + v.y + v.z + v.w;
  }
  return sum;
}

// ---- the background stream: a block re-reads its own run until `stop`, always in whole passes ---
struct StreamControl {  // shared memory; written by one warp, peeked at by the others
  u32 stop;             // set when the measured warps have finished
  u32 chunks;           // issued so far
  u32 last;             // chunks in all; ~0 while unknown
  u32 pad;
};

DEVICE void stream_init(StreamControl* control) {
  control->stop = 0;
  control->chunks = 0;
  control->last = ~0u;
}

#if HOPPER
// By one thread. Ends only between passes, so that the sum of what was read is known in advance.
DEVICE void stream_produce(const Ring& ring, StreamControl* control, const u8* run, u32 run_chunks,
                           const Watchdog& dog) {
  u64 policy = policy_evict_first();
  RingCursor at{0, 0};
  u32 chunks = 0;
  bool ok = true;
  while (ok && !shared_peek(&control->stop)) {
    for (u32 i = 0; i < run_chunks; ++i) {
      ok = ring_fill(ring, at, run + static_cast<u64>(i) * ring.bytes, true, policy, dog);
      if (!ok) break;
      ring_advance(at, ring, 1);
      shared_poke(&control->chunks, ++chunks);
    }
  }
  shared_poke(&control->last, ok ? chunks : 0);
  ring_drain(ring, chunks);
}
#endif

// By `readers` warps; chunk k belongs to warp k % readers. Returns this thread's share of the sum.
DEVICE u32 stream_consume(const Ring& ring, StreamControl* control, u32 reader, u32 readers,
                          const Watchdog& dog) {
  RingCursor at{0, 0};
  ring_advance(at, ring, reader);
  u32 sum = 0;
  for (u32 chunk = reader;; chunk += readers) {
    bool there = false;
    while (!(there = barrier_passed(ring.full + at.slot, at.parity))) {
      if (chunk >= shared_peek(&control->last)) break;
      if (starved(dog, WAIT_RING_FULL, chunk)) break;
    }
    if (!warp_all(there)) break;  // as in ring_wait_warp
    sum += slot_sum(ring, at.slot);
    ring_release(ring, at);
    ring_advance(at, ring, readers);
  }
  return sum;
}
