// Past 300 lines on purpose: one implementation of one header.
// The primitives on AMD's gfx942 (MI300X), in clang's builtins: no header, no library. They
// compile, but have run on no machine yet.
//
// A wave has 64 lanes, our warps 32: warps 2 i and 2 i + 1 are the halves of a wave and run in
// lockstep, so they must not wait for each other. A warp that streams therefore needs a wave of its
// own: with an odd number of warps the last one has it, and the launch rounds up to whole waves.
#pragma once

#define HOPPER 0

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))

// For the host too, which never calls them: clang lets no device function make a constant.
#define DEVICE [[maybe_unused]] static __attribute__((host)) __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define CONSTANT [[maybe_unused]] static __constant__ const
// Counters of the named barriers are cleared before anything else.
#define KERNEL(name, Params, threads)                                           \
  static __device__ void name##_body(const Params& p);                          \
  extern "C" __global__ void                                                    \
      __attribute__((amdgpu_flat_work_group_size(1, (threads + 63) / 64 * 64))) \
      name(const Params p) {                                                    \
    clear_named_barriers();                                                     \
    name##_body(p);                                                             \
  }                                                                             \
  static __device__ inline __attribute__((always_inline)) void name##_body(     \
      [[maybe_unused]] const Params& p)

#define AGENT __HIP_MEMORY_SCOPE_AGENT  // the whole GPU
#define SYSTEM __HIP_MEMORY_SCOPE_SYSTEM
#define WORKGROUP __HIP_MEMORY_SCOPE_WORKGROUP

extern "C" __shared__ __attribute__((aligned(1024))) u8 dynamic_shared_base[];

DEVICE u8* dynamic_shared() { return dynamic_shared_base; }

// ---- identity and clocks -----------------------------------------------------------------------
DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 block_threads() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE u32 block_index() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 block_count() { return __builtin_amdgcn_grid_size_x() / block_threads(); }
DEVICE u32 sm_id() {  // XCD, shader engine and compute unit, not consecutive
  constexpr i32 HW_ID = 4 | 8 << 6 | 7 << 11;  // bits 8 to 15 of the register HW_ID
  constexpr i32 XCC_ID = 20 | 3 << 11;         // bits 0 to 3
  return __builtin_amdgcn_s_getreg(XCC_ID) << 8 | __builtin_amdgcn_s_getreg(HW_ID);
}
DEVICE u64 clock_cycles() { return __builtin_readcyclecounter(); }
DEVICE u64 time_ns() { return __builtin_amdgcn_s_memrealtime() * 10; }  // 100 MHz
DEVICE void nap() { __builtin_amdgcn_s_sleep(16); }                     // 64 cycles each

// ---- block and warp ----------------------------------------------------------------------------
DEVICE u32 wave_thread() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}
// Lanes of a wave run in lockstep and LDS keeps a wave's order; this is for the compiler.
DEVICE void warp_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// gfx942 has one barrier for the block, so those of some warps are counted in LDS: a counter that
// grows by 32 with each warp, and is passed at the next multiple of `threads`. An id must always
// come with the same number of threads.
DEVICE u32* named_counter(u32 id) {
  __shared__ static u32 counters[16];
  return counters + id;
}
DEVICE void clear_named_barriers() {
  if (thread_index() < 16) *named_counter(thread_index()) = 0;
  block_barrier();  // publishes the cleared counters
}
DEVICE void named_barrier(u32 id, u32 threads) {
  u32* counter = named_counter(id);
  u32 before = 0;
  warp_barrier();  // collects the warp's stores
  if ((thread_index() & 31) == 0) {
    before = __hip_atomic_fetch_add(counter, 32u, __ATOMIC_RELEASE, WORKGROUP);
  }
  before = __builtin_amdgcn_ds_bpermute((wave_thread() & 32) * 4, before);
  u32 target = (before / threads + 1) * threads;
  while (static_cast<i32>(__hip_atomic_load(counter, __ATOMIC_ACQUIRE, WORKGROUP) - target) < 0) {
    __builtin_amdgcn_s_sleep(1);
  }
}

DEVICE u32 shuffle_from(u32 value, u32 thread) {
  return __builtin_amdgcn_ds_bpermute(((wave_thread() & 32) + (thread & 31)) * 4, value);
}
DEVICE u32 shuffle_xor(u32 value, u32 mask) { return shuffle_from(value, wave_thread() ^ mask); }
DEVICE float float_of_bits(u32 bits) { return __builtin_bit_cast(float, bits); }
DEVICE u32 bits_of_float(float value) { return __builtin_bit_cast(u32, value); }
DEVICE float shuffle_xor(float value, u32 mask) {
  return float_of_bits(shuffle_xor(bits_of_float(value), mask));
}
DEVICE float shuffle_from(float value, u32 thread) {
  return float_of_bits(shuffle_from(bits_of_float(value), thread));
}
DEVICE u32 warp_votes(bool here) {  // of this half of the wave
  return static_cast<u32>(__builtin_amdgcn_ballot_w64(here) >> (wave_thread() & 32));
}
DEVICE bool warp_all(bool here) { return warp_votes(here) == ~0u; }
DEVICE bool warp_any(bool here) { return warp_votes(here) != 0; }

// ---- global memory -----------------------------------------------------------------------------
typedef u32 Quad __attribute__((ext_vector_type(4)));
typedef __attribute__((address_space(1))) const Quad GlobalQuad;

DEVICE Vec4 vec4_of(Quad q) { return Vec4{q.x, q.y, q.z, q.w}; }
// Read-once data, past the L2's retention: non-temporal.
DEVICE Vec4 load_once(const Vec4* from) {
  return vec4_of(__builtin_nontemporal_load((GlobalQuad*)from));
}
DEVICE void load_pair_once(const void* from, u64, u32& a, u32& b) {
  a = static_cast<const u32*>(from)[0];
  b = static_cast<const u32*>(from)[1];
}
DEVICE void ask_for(const void*, u32, u64) {}  // gfx942 has no prefetch into L2
DEVICE void store_once(Vec4* to, Vec4 v) {
  __builtin_nontemporal_store(Quad{v.x, v.y, v.z, v.w},
                              (__attribute__((address_space(1))) Quad*)to);
}
// Relaxed accesses at agent scope go past the caches that are not coherent, without any fence. The
// address space is named, so that no flat access is made.
template <typename T>
DEVICE __attribute__((address_space(1))) T* in_global(T* at) {
  return (__attribute__((address_space(1))) T*)at;
}
DEVICE u32 load_relaxed(const u32* from) {
  return __hip_atomic_load(in_global(from), __ATOMIC_RELAXED, AGENT);
}
DEVICE u64 load_relaxed_wide(const void* from) {
  return __hip_atomic_load(in_global(static_cast<const u64*>(from)), __ATOMIC_RELAXED, AGENT);
}
// Two accesses of 8 bytes: the ISA names no wider atomic.
DEVICE Vec4 load_relaxed(const Vec4* from) {
  u64 low = load_relaxed_wide(&from->x), high = load_relaxed_wide(&from->z);
  return Vec4{static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high),
              static_cast<u32>(high >> 32)};
}
DEVICE void store_relaxed(u32* to, u32 value) {
  __hip_atomic_store(in_global(to), value, __ATOMIC_RELAXED, AGENT);
}
DEVICE u32 load_acquire(const u32* from) {
  return __hip_atomic_load(in_global(from), __ATOMIC_ACQUIRE, AGENT);
}
DEVICE void add_release(u32* to, u32 value) {
  __hip_atomic_fetch_add(in_global(to), value, __ATOMIC_RELEASE, AGENT);
}
DEVICE void fence_block() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup"); }
DEVICE void fence_device() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
DEVICE u32 load_relaxed_system(const u32* from) {
  return __hip_atomic_load(in_global(from), __ATOMIC_RELAXED, SYSTEM);
}
DEVICE u32 load_host(const u32* from) { return load_relaxed_system(from); }
DEVICE void store_relaxed_system(u32* to, u32 value) {
  __hip_atomic_store(in_global(to), value, __ATOMIC_RELAXED, SYSTEM);
}
DEVICE void fence_system() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }
DEVICE u32 add_relaxed(u32* to, u32 value) {  // of shared memory too
  return __hip_atomic_fetch_add(to, value, __ATOMIC_RELAXED, AGENT);
}
DEVICE u32 swap_if(u32* at, u32 expected, u32 value) {
  __hip_atomic_compare_exchange_strong(at, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       AGENT);
  return expected;
}

// ---- stamped words -----------------------------------------------------------------------------
DEVICE u64 bits_of_word(u32 value, u32 stamp) { return static_cast<u64>(stamp) << 32 | value; }
DEVICE Word word_of_bits(u64 bits) {
  return Word{static_cast<u32>(bits), static_cast<u32>(bits >> 32)};
}
DEVICE void publish(Word* to, u32 value, u32 stamp) {
  __hip_atomic_store(in_global(reinterpret_cast<u64*>(to)), bits_of_word(value, stamp),
                     __ATOMIC_RELAXED, AGENT);
}
DEVICE void publish_system(Word* to, u32 value, u32 stamp) {
  __hip_atomic_store(in_global(reinterpret_cast<u64*>(to)), bits_of_word(value, stamp),
                     __ATOMIC_RELAXED, SYSTEM);
}
DEVICE Word load_word(const Word* from) { return word_of_bits(load_relaxed_wide(from)); }
DEVICE Word load_word_system(const Word* from) {
  return word_of_bits(
      __hip_atomic_load(in_global(reinterpret_cast<const u64*>(from)), __ATOMIC_RELAXED, SYSTEM));
}
DEVICE Word load_host_word(const Word* from) { return load_word_system(from); }
DEVICE WordPair load_pair(const Word* from) {
  return WordPair{load_word(from), load_word(from + 1)};
}
DEVICE WordPair load_pair_system(const Word* from) {
  return WordPair{load_word_system(from), load_word_system(from + 1)};
}

// ---- shared memory that other warps of the block write without a barrier -----------------------
DEVICE u32 shared_peek(const u32* from) {
  return __hip_atomic_load(from, __ATOMIC_RELAXED, WORKGROUP);
}
DEVICE void shared_poke(u32* to, u32 value) {
  __hip_atomic_store(to, value, __ATOMIC_RELAXED, WORKGROUP);
}
DEVICE u32 shared_add(u32* to, u32 value) {
  return __hip_atomic_fetch_add(to, value, __ATOMIC_RELAXED, WORKGROUP);
}
DEVICE u64 shared_add(u64* to, u64 value) {
  return __hip_atomic_fetch_add(to, value, __ATOMIC_RELAXED, WORKGROUP);
}

// ---- copies of 16 bytes per thread: gfx942's own asynchronous copies move 4 ---------------------
DEVICE void copy_async16(void* to_shared, const void* from) {
  *static_cast<Vec4*>(to_shared) = load_once(static_cast<const Vec4*>(from));
}
DEVICE void copy_async_commit() {}
template <int PENDING>
DEVICE void copy_async_wait() {}

// ---- matrix products, by shuffles and FMA: MFMA wants a wave of 64
// --------------------------------
template <float (*DECODE)(u32)>
DEVICE void mma(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  u32 thread = thread_index() & 31, column = thread % 4 * 2;
#pragma unroll
  for (u32 k = 0; k < 16; k += 2) {  // of the matrices: two in a word
    u32 quad = k % 8 / 2;
    u32 top = shuffle_from(k < 8 ? a.x : a.z, thread / 4 * 4 + quad);
    u32 bottom = shuffle_from(k < 8 ? a.y : a.w, thread / 4 * 4 + quad);
    u32 left = shuffle_from(k < 8 ? b0 : b1, column * 4 + quad);
    u32 right = shuffle_from(k < 8 ? b0 : b1, column * 4 + 4 + quad);
#pragma unroll
    for (u32 shift = 0; shift < 32; shift += 16) {
      c[0] = __builtin_fmaf(DECODE(top >> shift), DECODE(left >> shift), c[0]);
      c[1] = __builtin_fmaf(DECODE(top >> shift), DECODE(right >> shift), c[1]);
      c[2] = __builtin_fmaf(DECODE(bottom >> shift), DECODE(left >> shift), c[2]);
      c[3] = __builtin_fmaf(DECODE(bottom >> shift), DECODE(right >> shift), c[3]);
    }
  }
}
DEVICE float float_of_bf16(u32 low) { return float_of_bits(low << 16); }
DEVICE float float_of_f16(u32 low) {
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<u16>(low)));
}
DEVICE void mma_bf16(float (&c)[4], Vec4 a, u32 b0, u32 b1) { mma<float_of_bf16>(c, a, b0, b1); }
DEVICE void mma_f16(float (&c)[4], Vec4 a, u32 b0, u32 b1) { mma<float_of_f16>(c, a, b0, b1); }

// ---- numbers -----------------------------------------------------------------------------------
typedef _Float16 HalfPair __attribute__((ext_vector_type(2)));

DEVICE u32 bf16_of_float(float value) {  // to nearest even; NaN is 0x7fff, as on the others
  u32 bits = bits_of_float(value);
  u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded;
}
DEVICE u32 pack_bf16x2(float low, float high) {
  return bf16_of_float(low) | bf16_of_float(high) << 16;
}
DEVICE u32 f16_of_float(float value) {
  u32 rounded = __builtin_bit_cast(u16, static_cast<_Float16>(value));
  return value != value ? 0x7fffu : rounded;
}
DEVICE u32 pack_f16x2(float low, float high) {
  return f16_of_float(low) | f16_of_float(high) << 16;
}
DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  HalfPair d = __builtin_bit_cast(HalfPair, a) - __builtin_bit_cast(HalfPair, b);
  return __builtin_bit_cast(u32, d);
}
DEVICE void floats_of_f16x2(u32 pair, float& low, float& high) {
  low = float_of_f16(pair);
  high = float_of_f16(pair >> 16);
}
// gfx942's own conversions are for another format (FNUZ), so the exponent moves as on sm_80.
DEVICE u32 f16x2_of_e4m3x2(u32 pair) {
  u32 bytes = (pair & 0xff) << 8 | (pair & 0xff00) << 16;  // each in the upper byte of its half
  u32 scaled = (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u);
  HalfPair moved = __builtin_bit_cast(HalfPair, scaled) * static_cast<_Float16>(256);
  u32 d = __builtin_bit_cast(u32, moved);
  if ((bytes & 0x7f00u) == 0x7f00u) d |= 0x7fffu;
  if ((bytes & 0x7f000000u) == 0x7f000000u) d |= 0x7fff0000u;
  return d;
}
DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) {  // v_perm has the words the other way round
  u32 bytes = (selector & 7) | (selector >> 4 & 7) << 8 | (selector >> 8 & 7) << 16 |
              (selector >> 12 & 7) << 24;
  return __builtin_amdgcn_perm(b, a, bytes);
}
DEVICE float divide(float a, float b) { return a / b; }
DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE u32 multiply_high(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }

// There is no library of functions, so log is a series: x = m 2^e with m in [sqrt(1/2), sqrt(2)),
// s = (m - 1) / (m + 1), log m = 2 (s + s^3/3 + s^5/5 + ...). s^2 <= 0.0295, so that the first term
// left out, s^25/25, is below 2^-65 of s. Within 2 ulp.
DEVICE double log_double(double x) {
  if (!(x > 0)) return x == 0 ? -__builtin_inf() : __builtin_nan("");
  if (x == __builtin_inf()) return x;
  i32 exponent = __builtin_amdgcn_frexp_exp(x);
  double m = __builtin_amdgcn_frexp_mant(x);  // in [1/2, 1)
  if (m < 0.70710678118654752) m *= 2, exponent -= 1;
  double s = (m - 1) / (m + 1), square = s * s, series = 0;
#pragma unroll
  for (i32 k = 23; k >= 3; k -= 2) series = (series + 1.0 / k) * square;
  constexpr double LN2_HIGH = 0x1.62e42fefa38p-1, LN2_LOW = 0x1.ef35793c7673p-45;
  return exponent * LN2_HIGH + (2 * s + (2 * s * series + exponent * LN2_LOW));
}
DEVICE float log_float(float x) { return static_cast<float>(log_double(x)); }
DEVICE float log1p_float(float x) {  // 1 + x is exact in double, or x is below a double's reach
  double y = 1.0 + static_cast<double>(x);
  return y == 1.0 ? x : static_cast<float>(log_double(y));
}

// ---- mbarrier: counted in one word of LDS, the number of arrivals in the other
// --------------------
constexpr u32 PHASE = 1u << 31;  // flips with each phase; below it, the arrivals that are missing

DEVICE u32* barrier_state(u64* barrier) { return reinterpret_cast<u32*>(barrier); }
DEVICE void barrier_init(u64* barrier, u32 arrivals) {
  barrier_state(barrier)[0] = arrivals;
  barrier_state(barrier)[1] = arrivals;
}
DEVICE void barrier_init_fence() {}
DEVICE void barrier_arrive(u64* barrier) {
  u32* state = barrier_state(barrier);
  u32 before = __hip_atomic_fetch_sub(state, 1u, __ATOMIC_ACQ_REL, WORKGROUP);
  if ((before & ~PHASE) != 1) return;
  // The last: everybody else waits for the phase, so nobody arrives before the next one begins.
  __hip_atomic_fetch_add(state, state[1] + PHASE, __ATOMIC_RELEASE, WORKGROUP);
}
DEVICE bool barrier_passed(u64* barrier, u32 parity) {
  u32 state = __hip_atomic_load(barrier_state(barrier), __ATOMIC_ACQUIRE, WORKGROUP);
  return state >> 31 != parity;
}
DEVICE u64 policy_evict_first() { return 0; }  // the loads themselves are non-temporal

// ---- a warp's copy into a slot of shared memory: through registers, eight loads in flight
// ---------
constexpr u32 STREAM_ARRIVALS = 1;
DEVICE void stream_chunk(void* to_shared, const void* from, u32 bytes, u64* full, u64) {
  constexpr u32 AHEAD = 8;
  u32 thread = thread_index() & 31, vectors = bytes / 16;
  const Vec4* source = static_cast<const Vec4*>(from);
  Vec4* to = static_cast<Vec4*>(to_shared);
  u32 i = thread;
  for (; i + (AHEAD - 1) * 32 < vectors; i += AHEAD * 32) {
    Vec4 v[AHEAD];
#pragma unroll
    for (u32 k = 0; k < AHEAD; ++k) v[k] = load_once(source + i + k * 32);
#pragma unroll
    for (u32 k = 0; k < AHEAD; ++k) to[i + k * 32] = v[k];
  }
  for (; i < vectors; i += 32) to[i] = load_once(source + i);
  warp_barrier();  // collects the lanes' stores for the arrival
  if (thread == 0) barrier_arrive(full);
}
