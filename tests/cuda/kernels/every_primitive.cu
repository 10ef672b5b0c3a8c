// Every primitive once, in kernels that also run: compiled for each architecture that we know, and
// compared with NumPy where there is something to run them.
#include "ring.cuh"

CONSTANT u32 PRIMES[8] = {2, 3, 5, 7, 11, 13, 17, 19};

struct NumbersParams {
  const u32* a;  // [count] bits of a float, or a pair of halves
  const u32* b;  // [count]
  u32* out;      // [20][count]
  u32 count;
  u32 pad;
};

KERNEL(numbers, NumbersParams, 64) {
  for (u32 i = block_index() * block_threads() + thread_index(); i < p.count;
       i += block_count() * block_threads()) {
    u32 a = p.a[i], b = p.b[i];
    float x = float_of_bits(a), y = float_of_bits(b), low, high;
    u32* out = p.out + i;
    u32 n = p.count;
    out[0 * n] = pack_bf16x2(x, y);
    out[1 * n] = pack_f16x2(x, y);
    out[2 * n] = bits_of_float(bf16_low(a));
    out[3 * n] = bits_of_float(bf16_high(a));
    out[4 * n] = bits_of_float(f16_low(a));
    out[5 * n] = bits_of_float(f16_high(a));
    floats_of_f16x2(b, low, high);
    out[6 * n] = bits_of_float(low);
    out[7 * n] = bits_of_float(high);
    out[8 * n] = subtract_f16x2(a, b);
    out[9 * n] = f16x2_of_e4m3x2(a & 0xffff);
    out[10 * n] = bits_of_float(exp2_fast(x));
    out[11 * n] = bits_of_float(divide(x, y));
    out[12 * n] = bits_of_float(square_root(x));
    out[13 * n] = bits_of_float(fma(x, y, 1.0f));
    out[14 * n] = bits_of_float(static_cast<float>(log_double(x)));
    out[15 * n] = bits_of_float(log_float(x));
    out[16 * n] = bits_of_float(log1p_float(x));
    out[17 * n] = multiply_high(a, b);
    out[18 * n] = select_bytes(a, b, 0x7250) + PRIMES[a % 8] + test_word(a, b);
    out[19 * n] = e4m3_of_float(x);
  }
}

struct WarpParams {
  const u32* a;  // [6][32] fragments of a matrix instruction
  u32* out;      // [19][32]
};

KERNEL(warp, WarpParams, 32) {
  u32 lane = warp_thread();
  float f = static_cast<float>(lane * lane);
  u32* out = p.out + lane;
  out[0 * 32] = shuffle_xor(lane * 3, 5u);
  out[1 * 32] = bits_of_float(shuffle_xor(f, 9u));
  out[2 * 32] = shuffle_from(lane * 3, (lane + 7) % 32);
  out[3 * 32] = bits_of_float(shuffle_from(f, 31 - lane));
  out[4 * 32] = warp_sum(lane);
  out[5 * 32] = bits_of_float(warp_sum(f));
  out[6 * 32] = warp_any(lane == 17) + 2 * warp_any(lane > 31);
  out[7 * 32] = warp_all(lane < 32) + 2 * warp_all(lane != 17);
  out[8 * 32] = thread_index() + warp_index() + block_index() + block_threads() + block_count();
  warp_barrier();
  Vec4 a{p.a[lane], p.a[32 + lane], p.a[64 + lane], p.a[96 + lane]};
  float c[4] = {1.0f, 2.0f, 3.0f, 4.0f}, d[4] = {};
  mma_bf16(c, a, p.a[128 + lane], p.a[160 + lane]);
  mma_f16(d, a, p.a[128 + lane], p.a[160 + lane]);
  for (u32 i = 0; i < 4; ++i) {
    out[(9 + i) * 32] = bits_of_float(c[i]);
    out[(13 + i) * 32] = bits_of_float(d[i]);
  }
  u64 cycles = clock_cycles(), ns = time_ns();
  nap();
  out[17 * 32] = clock_cycles() >= cycles && time_ns() >= ns;
  out[18 * 32] = sm_id() < 1024;
}

struct MemoryParams {
  Vec4* vectors;  // [2]
  Word* words;    // [4]
  u32* values;    // [16]
  u32* out;       // [32]
};

// One thread: what the primitives do to memory, one after the other.
KERNEL(memory, MemoryParams, 32) {
  u32* shared = reinterpret_cast<u32*>(dynamic_shared());
  u64* wide = reinterpret_cast<u64*>(shared + 4);
  if (thread_index() != 0) return;
  u32* out = p.out;
  store_once(p.vectors + 1, load_once(p.vectors));
  Vec4 v = load_relaxed(p.vectors + 1);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  publish(p.words, 5, 6);
  publish_system(p.words + 1, 7, 8);
  WordPair pair = load_pair(p.words);
  Word word = load_word(p.words + 1), host = load_host_word(p.words + 1);
  out[4] = pair.a.value, out[5] = pair.a.stamp, out[6] = pair.b.value, out[7] = pair.b.stamp;
  out[8] = word.value, out[9] = word.stamp;
  store_relaxed(p.values, 11);
  store_relaxed_system(p.values + 1, 12);
  fence_device();
  fence_system();
  out[10] = load_relaxed(p.values) + load_acquire(p.values) + load_relaxed_system(p.values + 1) +
            load_host(p.values + 1);
  add_release(p.values, 5);
  out[11] = add_relaxed(p.values, 6);
  out[12] = swap_if(p.values, 22, 99);
  out[13] = swap_if(p.values, 22, 100);
  out[14] = load_relaxed(p.values);
  shared_poke(shared, 40);
  *wide = 1ull << 40;
  out[15] = shared_add(shared, 2u);
  out[16] = static_cast<u32>(shared_add(wide, 3ull << 30) >> 32);
  out[17] = shared_peek(shared);
  out[18] = static_cast<u32>(*wide >> 30);
  out[19] = host.value + host.stamp;
}

struct CopyParams {
  const u8* from;  // [chunks][chunk_bytes]
  u32* sums;       // [2]
  u32* fault;      // [4]
  u64 watchdog;
  u32 chunks, chunk_bytes, slots, pad;
};

// Warp 0 streams, the others all read every chunk; then the other ways of copying.
KERNEL(copies, CopyParams, 96) {
  Ring ring = ring_at(dynamic_shared(), p.slots, p.chunk_bytes);
  if (thread_index() == 0) ring_init(ring, 2, STREAM_ARRIVALS);
  block_barrier();  // publishes the initialised barriers
  Watchdog dog = watchdog(p.fault, p.watchdog);
  RingCursor at{0, 0};
  u32 sum = 0;
  for (u32 i = 0; i < p.chunks; ++i) {
    if (warp_index() == 0) {
      u64 policy = policy_evict_first();
      if (!ring_stream(ring, at, p.from + i * p.chunk_bytes, p.chunk_bytes, policy, dog)) return;
    } else {
      if (!ring_wait_warp(ring, at, dog)) return;
      sum += slot_sum(ring, at.slot);
      ring_release(ring, at);
    }
    ring_advance(at, ring, 1);
  }
  if (warp_index() != 0) {
    sum = warp_sum(sum);
    if (warp_thread() == 0) add_relaxed(p.sums + warp_index() - 1, sum);
    named_barrier(1, 64);
  }
  block_barrier();  // the ring is empty, and what follows may use its slots
  copy_async16(dynamic_shared() + thread_index() * 16, p.from);
  copy_async_commit();
  copy_async_wait<0>();
#if HOPPER
  if (thread_index() == 0) {  // chunk 0 through shared memory and back to itself
    u8* to = const_cast<u8*>(p.from);
    u64* barrier = reinterpret_cast<u64*>(ring.slots + p.slots * p.chunk_bytes);
    barrier_init(barrier, 1);
    barrier_init_fence();
    barrier_expect(barrier, 16);
    bulk_load_default(ring.slots, p.from, 16, barrier);
    while (!barrier_passed(barrier, 0)) {
    }
    bulk_store(to, ring.slots, 16);
    bulk_commit();
    bulk_wait_read<0>();
    bulk_wait_all();
  }
#endif
}

#if HOPPER
struct ClusterParams {
  u32* out;  // [blocks]
};

// Every block writes into its right neighbour's shared memory and reads its left one's.
KERNEL(clusters, ClusterParams, 32) {
  u32* shared = reinterpret_cast<u32*>(dynamic_shared());
  u64* barrier = reinterpret_cast<u64*>(shared + 2);
  u32 blocks = block_count(), right = (cluster_rank() + 1) % blocks;
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (thread_index() == 0) {
    barrier_init(barrier, 1);
    barrier_init_fence();
  }
  cluster_barrier();  // all barriers are initialised
  if (thread_index() == 0) {
    peer_store(peer_address(shared, right), cluster_rank());
    peer_arrive(peer_address(barrier, right));
    while (!barrier_passed_cluster(barrier, 0)) {
    }
    shared[1] = 10 * shared[0];
  }
  cluster_barrier();  // publishes the products
  if (thread_index() == 0) p.out[block_index()] = peer_load(peer_address(shared + 1, right));
  cluster_barrier();  // nobody leaves while a peer may load
}
#endif
