// Past 300 lines on purpose: one implementation of one header.
// The primitives of primitives.cuh on the emulated device.
#pragma once

#include "memory.h"
#include "numbers.h"

// -DMONOLANE_EMULATED_SM=80 takes away what only sm_90 has, so that the other path runs.
#if defined(MONOLANE_EMULATED_SM) && MONOLANE_EMULATED_SM < 90
#define HOPPER 0
#else
#define HOPPER 1
#endif

#define DEVICE [[maybe_unused]] static inline
#define DEVICE_MEMBER inline
#define CONSTANT [[maybe_unused]] static const
#define EXPORTED __attribute__((visibility("default")))
#define KERNEL(name, Params, threads)                                                           \
  static void name##_body(const Params& p);                                                     \
  extern "C" EXPORTED void name(const void* p) { name##_body(*static_cast<const Params*>(p)); } \
  extern "C" EXPORTED uint32_t name##_max_threads() { return threads; }                         \
  extern "C" EXPORTED uint32_t name##_params_size() { return sizeof(Params); }                  \
  static void name##_body([[maybe_unused]] const Params& p)

typedef u64 SharedAddress;

// ---- identity and clocks -----------------------------------------------------------------------
DEVICE u8* dynamic_shared() { return emulator::own_block().shared; }
DEVICE u32 thread_index() { return emulator::self().thread; }
DEVICE u32 block_threads() { return emulator::own_block().grid->threads; }
DEVICE u32 block_index() { return emulator::own_block().index; }
DEVICE u32 block_count() { return emulator::own_block().grid->blocks; }
DEVICE u32 sm_id() {  // a permutation, so that nobody can take block and SM for the same
  u32 sms = emulator::machine->schedule->sms;
  return sms - 1 - emulator::own_block().sm % sms;
}
DEVICE u64 time_ns() { return emulator::read_clock(); }
DEVICE u64 clock_cycles() { return emulator::read_clock(); }
DEVICE void nap() { emulator::yield(); }

// ---- block and warp ----------------------------------------------------------------------------
DEVICE void block_barrier() { emulator::meet_block(0, block_threads()); }
DEVICE void named_barrier(u32 id, u32 threads) { emulator::meet_block(id, threads); }
DEVICE void emulated_grid_barrier() {
  emulator::fence();
  emulator::meet(emulator::machine->everybody, block_threads() * block_count(), "grid barrier");
}
DEVICE void warp_barrier() { emulator::meet_warp(emulator::BARRIER, nullptr, 0); }
DEVICE u32 shuffle_xor(u32 value, u32 mask) {
  const emulator::Posts& posts = emulator::meet_warp(emulator::SHUFFLE_XOR, &value, 1);
  return posts.words[(thread_index() ^ mask) % 32][0];
}
DEVICE float shuffle_xor(float value, u32 mask) {
  return emulator::float_of(shuffle_xor(emulator::bits_of(value), mask));
}
DEVICE u32 shuffle_from(u32 value, u32 lane) {
  const emulator::Posts& posts = emulator::meet_warp(emulator::SHUFFLE_FROM, &value, 1);
  return posts.words[lane % 32][0];
}
DEVICE float shuffle_from(float value, u32 lane) {
  return emulator::float_of(shuffle_from(emulator::bits_of(value), lane));
}
DEVICE u32 emulated_votes(bool here) {
  u32 mine = here;
  const emulator::Posts& posts =
      emulator::meet_warp(emulator::VOTE, &mine, 1, [](emulator::Posts& all) {
        u32 votes = 0;
        for (u32 i = 0; i < 32; ++i) votes |= all.words[i][0] << i;
        all.words[0][1] = votes;
      });
  return posts.words[0][1];
}
DEVICE bool warp_all(bool here) { return emulated_votes(here) == 0xffffffffu; }
DEVICE bool warp_any(bool here) { return emulated_votes(here) != 0; }

// ---- global memory -----------------------------------------------------------------------------
DEVICE Vec4 load_once(const Vec4* from) { return *from; }
DEVICE void store_once(Vec4* to, Vec4 v) { *to = v; }
DEVICE void load_pair_once(const void* from, u64, u32& a, u32& b) {
  emulator::check_aligned(from, 8, "load of a pair");
  emulator::check_own(from, "load");
  a = static_cast<const u32*>(from)[0];
  b = static_cast<const u32*>(from)[1];
}
DEVICE void ask_for(const void* from, u32 bytes, u64) {
  emulator::check_aligned(from, 16, "prefetch");
  emulator::check_own(from, "prefetch");
  if (bytes % 16) EMULATOR_FAIL("a prefetch of %u bytes: expected a multiple of 16", bytes);
}
DEVICE u32 load_relaxed(const u32* from) {
  return static_cast<u32>(emulator::observe_word(from, 4));
}
DEVICE Vec4 load_relaxed(const Vec4* from) {  // torn: others run between the words
  emulator::check_aligned(from, 16, "load of a vector");
  const u32* w = reinterpret_cast<const u32*>(from);
  u32 got[4], first = emulator::draw() % 4;
  for (u32 i = 0; i < 4; ++i) {
    got[(first + i) % 4] = load_relaxed(w + (first + i) % 4);
    emulator::maybe_yield(16);
  }
  return Vec4{got[0], got[1], got[2], got[3]};
}
DEVICE void store_relaxed(u32* to, u32 value) { emulator::store_late(to, value, 4); }
DEVICE u32 load_acquire(const u32* from) { return load_relaxed(from); }
DEVICE void fence_block() {}  // shared memory has no delays here
DEVICE void fence_device() { emulator::fence(); }
DEVICE u32 add_relaxed(u32* to, u32 value) {
  emulator::check_own(to, "atomic");
  emulator::drain_at(emulator::own_block().stores, to, 4);
  u32 before = __atomic_fetch_add(to, value, __ATOMIC_ACQ_REL);
  emulator::advance();
  emulator::maybe_yield(8);
  return before;
}
DEVICE void add_release(u32* to, u32 value) {
  emulator::fence();
  add_relaxed(to, value);
}
DEVICE u32 swap_if(u32* at, u32 expected, u32 value) {
  emulator::check_own(at, "atomic");
  emulator::drain_at(emulator::own_block().stores, at, 4);
  u32 before = expected;
  if (__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    emulator::advance();
  } else if (emulator::spins(at, before)) {
    emulator::yield();
  }
  return before;
}
DEVICE u32 load_relaxed_system(const u32* from) { return load_relaxed(from); }
DEVICE u32 load_host(const u32* from) { return load_relaxed(from); }
DEVICE void store_relaxed_system(u32* to, u32 value) { store_relaxed(to, value); }
DEVICE void fence_system() { emulator::fence_links(); }

// ---- stamped words -----------------------------------------------------------------------------
DEVICE void publish(Word* to, u32 value, u32 stamp) {
  emulator::store_late(to, static_cast<u64>(stamp) << 32 | value, 8);
}
DEVICE void publish_system(Word* to, u32 value, u32 stamp) {
  emulator::store_across(to, static_cast<u64>(stamp) << 32 | value, 8);
}
DEVICE Word load_word_system(const Word* from) {
  u64 bits = emulator::observe_word(from, 8);
  return Word{static_cast<u32>(bits), static_cast<u32>(bits >> 32)};
}
DEVICE Word load_word(const Word* from) {
  emulator::check_scope(from);
  return load_word_system(from);
}
DEVICE Word load_host_word(const Word* from) { return load_word_system(from); }
DEVICE WordPair load_pair_system(const Word* from) {  // torn: others run between the words
  emulator::check_aligned(from, 16, "load of a pair of words");
  WordPair got;
  bool backward = emulator::draw() & 1;
  (backward ? got.b : got.a) = load_word_system(from + backward);
  emulator::maybe_yield(16);
  (backward ? got.a : got.b) = load_word_system(from + !backward);
  return got;
}
DEVICE WordPair load_pair(const Word* from) {
  emulator::check_scope(from);
  emulator::check_scope(from + 1);
  return load_pair_system(from);
}

// ---- shared memory that other warps of the block write without a barrier -----------------------
DEVICE u32 shared_peek(const u32* from) {
  return static_cast<u32>(emulator::observe(from, [&] { return static_cast<u64>(*from); }));
}
DEVICE void shared_poke(u32* to, u32 value) {
  *to = value;
  emulator::advance();
  emulator::maybe_yield(8);
}
template <typename T>
DEVICE T emulated_shared_add(T* to, T value) {
  T before = *to;
  *to = before + value;
  emulator::advance();
  emulator::maybe_yield(8);
  return before;
}
DEVICE u32 shared_add(u32* to, u32 value) { return emulated_shared_add(to, value); }
DEVICE u64 shared_add(u64* to, u64 value) { return emulated_shared_add(to, value); }

// ---- cp.async ----------------------------------------------------------------------------------
DEVICE void copy_async16(void* to, const void* from) {
  emulator::check_copy(to, from, 16);
  memset(to, emulator::POISON, 16);
  emulator::pending().open.push_back({static_cast<u8*>(to), static_cast<const u8*>(from), 16, 0, 1,
                                      nullptr, false, &emulator::own_block()});
}
DEVICE void copy_async_commit() { emulator::commit(); }
template <int PENDING>
DEVICE void copy_async_wait() {
  emulator::retire(emulator::self(), PENDING);
}

// ---- matrix instructions -----------------------------------------------------------------------
DEVICE void emulated_mma(void (*multiply)(emulator::Posts&), float (&c)[4], Vec4 a, u32 b0,
                         u32 b1) {
  u32 mine[10] = {a.x, a.y, a.z, a.w, b0, b1};
  for (u32 i = 0; i < 4; ++i) mine[6 + i] = emulator::bits_of(c[i]);
  const emulator::Posts& posts = emulator::meet_warp(emulator::MATRIX, mine, 10, multiply);
  for (u32 i = 0; i < 4; ++i) c[i] = posts.product[thread_index() % 32][i];
}
DEVICE void mma_bf16(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  emulated_mma(emulator::multiply_bf16, c, a, b0, b1);
}
DEVICE void mma_f16(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  emulated_mma(emulator::multiply_f16, c, a, b0, b1);
}

// ---- numbers -----------------------------------------------------------------------------------
DEVICE float float_of_bits(u32 bits) { return emulator::float_of(bits); }
DEVICE u32 bits_of_float(float value) { return emulator::bits_of(value); }
DEVICE u32 pack_bf16x2(float low, float high) {
  using namespace emulator;
  return float_to_bf16(disturbed(low)) | float_to_bf16(disturbed(high)) << 16;
}
DEVICE u32 pack_f16x2(float low, float high) {
  using namespace emulator;
  return float_to_half(disturbed(low)) | float_to_half(disturbed(high)) << 16;
}
DEVICE u32 subtract_f16x2(u32 a, u32 b) {  // float's difference is exact enough to round once more
  using namespace emulator;
  return float_to_half(half_to_float(a & 0xffff) - half_to_float(b & 0xffff)) |
         float_to_half(half_to_float(a >> 16) - half_to_float(b >> 16)) << 16;
}
DEVICE void floats_of_f16x2(u32 pair, float& low, float& high) {
  low = emulator::half_to_float(pair & 0xffff);
  high = emulator::half_to_float(pair >> 16);
}
DEVICE u32 f16x2_of_e4m3x2(u32 pair) {
  using namespace emulator;  // exact
  return float_to_half(e4m3_to_float(pair & 255)) | float_to_half(e4m3_to_float(pair >> 8 & 255))
                                                        << 16;
}
DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) {
  u64 all = static_cast<u64>(b) << 32 | a;
  u32 out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<u32>(all >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  }
  return out;
}
DEVICE float divide(float a, float b) { return a / b; }
DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE double log_double(double x) { return __builtin_log(x); }
DEVICE float log_float(float x) { return __builtin_logf(x); }
DEVICE float log1p_float(float x) { return __builtin_log1pf(x); }
DEVICE u32 multiply_high(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }

// ---- mbarrier ----------------------------------------------------------------------------------
DEVICE void barrier_init(u64* barrier, u32 arrivals) { emulator::init_barrier(barrier, arrivals); }
DEVICE void barrier_init_fence() {}
DEVICE void barrier_arrive(u64* barrier) { emulator::arrive(barrier); }
DEVICE bool barrier_passed(u64* barrier, u32 parity) { return emulator::passed(barrier, parity); }
DEVICE u64 policy_evict_first() { return 0; }

#if HOPPER
DEVICE void barrier_expect(u64* barrier, u32 bytes) { emulator::arrive(barrier, bytes); }

// ---- 1-D bulk copies ---------------------------------------------------------------------------
DEVICE void bulk_load_default(void* to, const void* from, u32 bytes, u64* barrier) {
  emulator::check_copy(to, from, bytes);
  emulator::fly(
      {static_cast<u8*>(to), static_cast<const u8*>(from), bytes, 0, 1, barrier, false, nullptr});
}
DEVICE void bulk_load(void* to, const void* from, u32 bytes, u64* barrier, u64) {
  bulk_load_default(to, from, bytes, barrier);
}
DEVICE void bulk_store(void* to, const void* from, u32 bytes) {
  emulator::check_copy(from, to, bytes);
  emulator::pending().open.push_back({static_cast<u8*>(to), static_cast<const u8*>(from), bytes, 0,
                                      1, nullptr, false, &emulator::own_block()});
}
DEVICE void bulk_commit() { emulator::commit(); }
template <int PENDING>
DEVICE void bulk_wait_read() {
  emulator::retire(emulator::self(), PENDING);
}
DEVICE void bulk_wait_all() { emulator::retire(emulator::self(), 0); }

// ---- clusters ----------------------------------------------------------------------------------
DEVICE u32 cluster_rank() { return block_index() % emulator::own_block().grid->cluster; }
DEVICE void cluster_barrier() {
  emulator::fence();
  emulator::Cluster& c = *emulator::own_block().cluster;
  emulator::meet(c.meeting, c.live, "cluster barrier");
}
DEVICE SharedAddress peer_address(const void* own, u32 rank) {
  emulator::Block& b = emulator::own_block();
  emulator::Block& peer = *(&b + rank - cluster_rank());  // blocks of a wave lie side by side
  if (peer.live == 0) {
    EMULATOR_FAIL("the shared memory of block %u, which has left, was addressed", peer.index);
  }
  return reinterpret_cast<u64>(peer.shared + (static_cast<const u8*>(own) - b.shared));
}
DEVICE void peer_store(SharedAddress to, u32 value) {
  *reinterpret_cast<u32*>(to) = value;
  emulator::advance();
  emulator::maybe_yield(16);
}
DEVICE u32 peer_load(SharedAddress from) {
  emulator::maybe_yield(4);
  return *reinterpret_cast<u32*>(from);
}
DEVICE void peer_arrive(SharedAddress barrier) {
  emulator::arrive(reinterpret_cast<u64*>(barrier));
}
DEVICE bool barrier_passed_cluster(u64* barrier, u32 parity) {
  return barrier_passed(barrier, parity);
}

DEVICE void let_next_kernel_start() {}
DEVICE void wait_for_previous_kernel() {}
#endif  // HOPPER

// ---- a warp's copy into a slot of shared memory ------------------------------------------------
#if HOPPER
constexpr u32 STREAM_ARRIVALS = 1;
DEVICE void stream_chunk(void* to, const void* from, u32 bytes, u64* full, u64 policy) {
  if (thread_index() % 32 != 0) return;
  barrier_expect(full, bytes);
  bulk_load(to, from, bytes, full, policy);
}
#else
constexpr u32 STREAM_ARRIVALS = 32;
DEVICE void stream_chunk(void* to, const void* from, u32 bytes, u64* full, u64) {
  emulator::check_copy(to, from, bytes);
  u32 lane = thread_index() % 32, pieces = bytes / 16;
  emulator::fly({static_cast<u8*>(to) + lane * 16, static_cast<const u8*>(from) + lane * 16, 16,
                 32 * 16, pieces / 32 + (lane < pieces % 32), full, true, nullptr});
}
#endif
