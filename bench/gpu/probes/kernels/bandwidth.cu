// Reading (and copying) several gigabytes by plain 16-byte loads, cp.async and bulk copies. All of
// them take the same chunks in the same two orders, so that only the mechanism differs. A reader
// adds up every word it read; the host knows the sum from the fill.
#include "params.h"
#include "ring.cuh"

// Which chunks a block owns: one contiguous run, or every block_count()-th chunk.
struct Share {
  u64 first, step, count;
};
DEVICE Share share_of(u64 chunks, u32 interleaved) {
  u64 blocks = block_count();
  u64 block = block_index();
  if (interleaved) return Share{block, blocks, (chunks + blocks - 1 - block) / blocks};
  u64 begin = chunks * block / blocks;
  return Share{begin, 1, chunks * (block + 1) / blocks - begin};
}

DEVICE void report_sum(u32* sums, u32 sum) {
  sum = warp_sum(sum);
  if (warp_thread() == 0) add_relaxed(sums + block_index(), sum);
}

// ---- plain loads: UNROLL independent 16-byte loads per thread before the first use --------------
template <int UNROLL>
DEVICE void read_plain(const BandwidthParams& p) {
  Share share = share_of(p.chunks, p.interleaved);
  u32 sum = 0;
  for (u64 k = 0; k < share.count; ++k) {
    const u8* chunk = p.from + (share.first + k * share.step) * p.chunk_bytes;
    const Vec4* at = reinterpret_cast<const Vec4*>(chunk) + thread_index();
    for (u32 i = 0; i < p.chunk_bytes; i += block_threads() * 16 * UNROLL) {
      Vec4 v[UNROLL];
#pragma unroll
      for (int j = 0; j < UNROLL; ++j) v[j] = load_once(at + j * block_threads());
#pragma unroll
      for (int j = 0; j < UNROLL; ++j) sum += v[j].x + v[j].y + v[j].z + v[j].w;
      at += block_threads() * UNROLL;
    }
  }
  report_sum(p.sums, sum);
}
KERNEL(read_plain_4, BandwidthParams, 1024) { read_plain<4>(p); }
KERNEL(read_plain_8, BandwidthParams, 1024) { read_plain<8>(p); }

KERNEL(copy_plain, BandwidthParams, 1024) {
  constexpr int UNROLL = 4;
  Share share = share_of(p.chunks, p.interleaved);
  for (u64 k = 0; k < share.count; ++k) {
    u64 offset = (share.first + k * share.step) * p.chunk_bytes;
    const Vec4* from = reinterpret_cast<const Vec4*>(p.from + offset) + thread_index();
    Vec4* to = reinterpret_cast<Vec4*>(p.to + offset) + thread_index();
    for (u32 i = 0; i < p.chunk_bytes; i += block_threads() * 16 * UNROLL) {
      Vec4 v[UNROLL];
#pragma unroll
      for (int j = 0; j < UNROLL; ++j) v[j] = load_once(from + j * block_threads());
#pragma unroll
      for (int j = 0; j < UNROLL; ++j) store_once(to + j * block_threads(), v[j]);
      from += block_threads() * UNROLL;
      to += block_threads() * UNROLL;
    }
  }
}

// ---- cp.async: a ring of 8 groups; every thread reads back only what it copied itself, so
// wait_group alone orders its loads after its copies and no block barrier is needed
constexpr int GROUPS = 8;

DEVICE void async_group(const BandwidthParams& p, const Share& share, u64 k) {
  if (k < share.count) {
    const u8* from = p.from + (share.first + k * share.step) * p.chunk_bytes;
    u8* to = dynamic_shared() + (k % GROUPS) * p.chunk_bytes;
    for (u32 i = thread_index() * 16; i < p.chunk_bytes; i += block_threads() * 16) {
      copy_async16(to + i, from + i);
    }
  }
  copy_async_commit();  // an empty group at the end keeps the count of pending groups constant
}

KERNEL(read_async, BandwidthParams, 128) {
  Share share = share_of(p.chunks, p.interleaved);
  u32 sum = 0;
  for (u64 k = 0; k + 1 < GROUPS; ++k) async_group(p, share, k);
  for (u64 k = 0; k < share.count; ++k) {
    async_group(p, share, k + GROUPS - 1);
    copy_async_wait<GROUPS - 1>();  // group k has landed
    const u8* slot = dynamic_shared() + (k % GROUPS) * p.chunk_bytes;
    for (u32 i = thread_index() * 16; i < p.chunk_bytes; i += block_threads() * 16) {
      Vec4 v = *reinterpret_cast<const Vec4*>(slot + i);
      sum += v.x + v.y + v.z + v.w;
    }
  }
  report_sum(p.sums, sum);
}

KERNEL(copy_async, BandwidthParams, 128) {
  Share share = share_of(p.chunks, p.interleaved);
  for (u64 k = 0; k + 1 < GROUPS; ++k) async_group(p, share, k);
  for (u64 k = 0; k < share.count; ++k) {
    async_group(p, share, k + GROUPS - 1);
    copy_async_wait<GROUPS - 1>();  // group k has landed
    const u8* slot = dynamic_shared() + (k % GROUPS) * p.chunk_bytes;
    u8* to = p.to + (share.first + k * share.step) * p.chunk_bytes;
    for (u32 i = thread_index() * 16; i < p.chunk_bytes; i += block_threads() * 16) {
      store_once(reinterpret_cast<Vec4*>(to + i), *reinterpret_cast<const Vec4*>(slot + i));
    }
  }
}

#if HOPPER
// ---- bulk copies: warp 0 produces (one thread), the other warps take chunks in turn
// ---------------
KERNEL(read_bulk, BandwidthParams, 544) {
  u32 readers = block_threads() / 32 - 1;
  Ring ring = ring_at(dynamic_shared(), p.slots, p.chunk_bytes);
  Share share = share_of(p.chunks, p.interleaved);
  if (thread_index() == 0) ring_init(ring, 1);
  block_barrier();  // publishes the initialised barriers to the reading warps
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  if (warp_index() == 0) {
    if (warp_thread() != 0) return;
    u64 policy = policy_evict_first();
    RingCursor at{0, 0};
    u64 issued = 0;
    for (; issued < share.count; ++issued) {
      const u8* from = p.from + (share.first + issued * share.step) * p.chunk_bytes;
      if (!ring_fill(ring, at, from, p.evict_first != 0, policy, dog)) break;
      ring_advance(at, ring, 1);
    }
    ring_drain(ring, issued);
    return;
  }
  u32 reader = warp_index() - 1;
  RingCursor at{0, 0};
  ring_advance(at, ring, reader);
  u32 sum = 0;
  for (u64 k = reader; k < share.count; k += readers) {
    if (!ring_wait_warp(ring, at, dog)) return;
    sum += slot_sum(ring, at.slot);
    ring_release(ring, at);
    ring_advance(at, ring, readers);
  }
  report_sum(p.sums, sum);
}

// One thread moves chunks in and out of 8 slots: loads run four chunks ahead of stores.
KERNEL(copy_bulk, BandwidthParams, 32) {
  constexpr u32 SLOTS = 8, AHEAD = 4;
  Ring ring = ring_at(dynamic_shared(), SLOTS, p.chunk_bytes);
  Share share = share_of(p.chunks, p.interleaved);
  if (thread_index() != 0) return;
  ring_init(ring, 1);
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  u64 policy = policy_evict_first();
  for (u64 k = 0; k < share.count + AHEAD; ++k) {
    if (k < share.count) {
      // Slot k % 8 held chunk k - 8, whose store is older than the last AHEAD - 1 = 3 groups:
      // its reads of the slot must be over before the copy engine overwrites it.
      if (k >= SLOTS) bulk_wait_read<AHEAD - 1>();
      u32 slot = static_cast<u32>(k % SLOTS);
      barrier_expect(ring.full + slot, p.chunk_bytes);
      bulk_load(ring.slots + slot * p.chunk_bytes,
                p.from + (share.first + k * share.step) * p.chunk_bytes, p.chunk_bytes,
                ring.full + slot, policy);
    }
    if (k < AHEAD) continue;
    u64 j = k - AHEAD;
    RingCursor at{static_cast<u32>(j % SLOTS), static_cast<u32>(j / SLOTS) & 1};
    if (!ring_wait(ring, at, dog)) {
      ring_drain(ring, k < share.count ? k + 1 : share.count);
      break;
    }
    // Both sides of the slot are the copy engine's: the wait on `full` orders the store after the
    // load, and no generic access comes between, so no proxy fence is needed.
    bulk_store(p.to + (share.first + j * share.step) * p.chunk_bytes,
               ring.slots + at.slot * p.chunk_bytes, p.chunk_bytes);
    bulk_commit();
  }
  bulk_wait_all();  // the stores have reached memory before the kernel ends
}
#endif
