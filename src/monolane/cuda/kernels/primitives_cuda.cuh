// Past 300 lines on purpose: one implementation of one header.
// The primitives on NVIDIA GPUs, sm_80 and later, as PTX.
#pragma once

// Bulk copies, mbarriers with byte counts, clusters, dependent launches: sm_90 and later.
#if __CUDA_ARCH__ >= 900
#define HOPPER 1
#else
#define HOPPER 0
#endif

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define CONSTANT static __constant__ const  // tables indexed at run time
// One block per SM is what every kernel here assumes, so registers are capped by the threads alone.
#define KERNEL(name, Params, threads) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Params p)

typedef u32
    SharedAddress;  // address in the shared-memory window, of this block or of a cluster peer

extern __shared__ __align__(1024) u8 dynamic_shared_base[];

DEVICE u8* dynamic_shared() { return dynamic_shared_base; }
DEVICE SharedAddress shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// ---- identity and clocks -----------------------------------------------------------------------
DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 block_threads() { return blockDim.x; }
DEVICE u32 block_index() { return blockIdx.x; }
DEVICE u32 block_count() { return gridDim.x; }
DEVICE u32 sm_id() {
  u32 id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
DEVICE u64 clock_cycles() {  // SM cycles; comparable on one SM only
  u64 cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}
DEVICE u64 time_ns() {  // one clock for the whole device, but it ticks coarsely (up to 1 us)
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}
DEVICE void nap() { __nanosleep(500); }

// ---- block and warp ----------------------------------------------------------------------------
constexpr u32 ALL_LANES = 0xffffffffu;

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE bool warp_all(bool here) { return __all_sync(ALL_LANES, here) != 0; }
DEVICE bool warp_any(bool here) { return __any_sync(ALL_LANES, here) != 0; }
DEVICE u32 shuffle_xor(u32 value, u32 mask) { return __shfl_xor_sync(ALL_LANES, value, mask); }
DEVICE float shuffle_xor(float value, u32 mask) { return __shfl_xor_sync(ALL_LANES, value, mask); }
DEVICE u32 shuffle_from(u32 value, u32 lane) { return __shfl_sync(ALL_LANES, value, lane); }
DEVICE float shuffle_from(float value, u32 lane) { return __shfl_sync(ALL_LANES, value, lane); }

// ---- global memory -----------------------------------------------------------------------------
// Read-once data: not kept in L1. Only for memory that no kernel in flight writes.
DEVICE Vec4 load_once(const Vec4* from) {
  Vec4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
DEVICE void store_once(Vec4* to, Vec4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
// Eight bytes of memory that this block alone writes, past L2's retention.
DEVICE void load_pair_once(const void* from, u64 policy, u32& a, u32& b) {
  asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(a), "=r"(b)
               : "l"(from), "l"(policy)
               : "memory");
}
// Asks L2 for bytes, a multiple of 16 at such an address; by one thread.
DEVICE void ask_for(const void* from, u32 bytes, u64 policy) {
#if HOPPER
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from),
               "r"(bytes), "l"(policy)
               : "memory");
#else
  const u8* at = static_cast<const u8*>(from);
  for (u32 i = 0; i < bytes; i += 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at + i) : "memory");
  }
#endif
}
// Relaxed accesses at GPU scope are served by L2, never by this SM's L1.
DEVICE u32 load_relaxed(const u32* from) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
// Four words, each single-copy atomic by itself; the vector is not.
DEVICE Vec4 load_relaxed(const Vec4* from) {
  Vec4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
DEVICE void store_relaxed(u32* to, u32 value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
DEVICE u32 load_acquire(const u32* from) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
DEVICE void add_release(u32* to, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
DEVICE void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// System scope: what a peer GPU or the host may write or read.
DEVICE u32 load_relaxed_system(const u32* from) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
DEVICE u32 load_host(const u32* from) { return load_relaxed_system(from); }  // pinned memory
DEVICE void store_relaxed_system(u32* to, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
DEVICE u32 add_relaxed(u32* to, u32 value) { return atomicAdd(to, value); }
DEVICE u32 swap_if(u32* at, u32 expected, u32 value) { return atomicCAS(at, expected, value); }

// ---- stamped words: one 64-bit scalar each, because the elements of a vector access are
// single-copy atomic but the vector is not
// ---------------------------------------------------------
DEVICE u64 bits_of_word(u32 value, u32 stamp) { return static_cast<u64>(stamp) << 32 | value; }
DEVICE Word word_of_bits(u64 bits) {
  return Word{static_cast<u32>(bits), static_cast<u32>(bits >> 32)};
}
DEVICE void publish(Word* to, u32 value, u32 stamp) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(bits_of_word(value, stamp))
               : "memory");
}
DEVICE void publish_system(Word* to, u32 value, u32 stamp) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(bits_of_word(value, stamp))
               : "memory");
}
DEVICE Word load_word(const Word* from) {
  u64 bits;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(from) : "memory");
  return word_of_bits(bits);
}
DEVICE Word load_word_system(const Word* from) {
  u64 bits;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(bits) : "l"(from) : "memory");
  return word_of_bits(bits);
}
DEVICE Word load_host_word(const Word* from) { return load_word_system(from); }  // pinned memory
// Two words at a 16-byte alignment, each single-copy atomic by itself; the pair is not.
DEVICE WordPair load_pair(const Word* from) {
  u64 a, b;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(from)
               : "memory");
  return WordPair{word_of_bits(a), word_of_bits(b)};
}
DEVICE WordPair load_pair_system(const Word* from) {
  u64 a, b;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(from)
               : "memory");
  return WordPair{word_of_bits(a), word_of_bits(b)};
}

// ---- shared memory that other warps of the block write without a barrier -----------------------
DEVICE u32 shared_peek(const u32* from) { return *const_cast<const volatile u32*>(from); }
DEVICE void shared_poke(u32* to, u32 value) { *const_cast<volatile u32*>(to) = value; }
DEVICE u32 shared_add(u32* to, u32 value) {  // returns what was there
  u32 before;
  asm volatile("atom.relaxed.cta.shared.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(to)), "r"(value)
               : "memory");
  return before;
}
DEVICE u64 shared_add(u64* to, u64 value) {
  u64 before;
  asm volatile("atom.relaxed.cta.shared.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "r"(shared_address(to)), "l"(value)
               : "memory");
  return before;
}

// ---- cp.async: 16 bytes per thread into shared memory ------------------------------------------
DEVICE void copy_async16(void* to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to_shared)),
               "l"(from)
               : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- matrix instructions -----------------------------------------------------------------------
DEVICE void mma_bf16(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
DEVICE void mma_f16(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// ---- numbers; fma(float, float, float) is the compiler's own -----------------------------------
DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 bits_of_float(float value) { return __float_as_uint(value); }
// Two floats to a pair of 16-bit numbers, each rounded to nearest even.
DEVICE u32 pack_bf16x2(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
DEVICE u32 pack_f16x2(float low, float high) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  u32 d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
DEVICE void floats_of_f16x2(u32 pair, float& low, float& high) {
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}
DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
// Correctly rounded, whatever -use_fast_math says.
DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float square_root(float x) { return __fsqrt_rn(x); }
DEVICE double log_double(double x) { return log(x); }
DEVICE float log_float(float x) { return logf(x); }
DEVICE float log1p_float(float x) { return log1pf(x); }
DEVICE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
// Two e4m3 values (low 16 bits of the pair) to two f16.
DEVICE u32 f16x2_of_e4m3x2(u32 pair) {
  u32 d;
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p;}" : "=r"(d) : "r"(pair));
#else
  // e4m3's exponent and mantissa, moved to f16's places, are the number times 2^-8 (bias 7 and 15),
  // subnormals too; 448 and below stay exact. 0x7f is the one NaN.
  u32 bytes = __byte_perm(pair, 0, 0x1404);  // byte i of the pair in the upper byte of half i
  u32 scaled = (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(scaled), "r"(0x5c005c00u));  // 2^8, twice
  if ((bytes & 0x7f00u) == 0x7f00u) d |= 0x7fffu;
  if ((bytes & 0x7f000000u) == 0x7f000000u) d |= 0x7fff0000u;
#endif
  return d;
}

// ---- mbarrier: 64 bits in shared memory; every wait names the parity of the phase it waits for --
DEVICE void barrier_init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
// Publishes the mbarrier.init above to the copy engine and to the cluster; a block or cluster
// barrier must follow before anyone else arrives or waits.
DEVICE void barrier_init_fence() {
#if HOPPER
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
#if HOPPER
DEVICE void barrier_expect(u64* barrier, u32 bytes) {  // one arrival, and `bytes` to come
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
#endif
DEVICE void barrier_arrive(u64* barrier) {  // release, at block scope
#if HOPPER
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
#else
  asm volatile(
      "{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(shared_address(barrier))
      : "memory");
#endif
}
// Whether the phase of this parity is over; acquire, at block scope. sm_90 waits a little first.
DEVICE bool barrier_passed(u64* barrier, u32 parity) {
  u32 done;
#if HOPPER
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

DEVICE u64 policy_evict_first() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

#if HOPPER
// ---- 1-D bulk copies ---------------------------------------------------------------------------
DEVICE void bulk_load(void* to_shared, const void* from, u32 bytes, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to_shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// Orders what this thread has waited for before the bulk copies that it begins: they go another way
// to memory ("async proxy") than loads and stores.
DEVICE void bulk_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void bulk_load_default(void* to_shared, const void* from, u32 bytes, u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to_shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
DEVICE void bulk_store(void* to, const void* from_shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from_shared)), "r"(bytes)
               : "memory");
}
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void bulk_wait_read() {  // until all but PENDING groups have *read* their shared memory
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
DEVICE void bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- clusters ----------------------------------------------------------------------------------
DEVICE u32 cluster_rank() {
  u32 v;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
  return v;
}
DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
DEVICE SharedAddress peer_address(const void* own_shared, u32 rank) {
  SharedAddress a;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(a)
               : "r"(shared_address(own_shared)), "r"(rank));
  return a;
}
DEVICE void peer_store(SharedAddress to, u32 value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
DEVICE u32 peer_load(SharedAddress from) {
  u32 v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
DEVICE void peer_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
DEVICE bool barrier_passed_cluster(u64* barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// ---- programmatic dependent launch -------------------------------------------------------------
DEVICE void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif  // HOPPER

// ---- a warp's copy into a slot of shared memory ------------------------------------------------
#if HOPPER
constexpr u32 STREAM_ARRIVALS = 1;  // what `full` is initialised with
#else
constexpr u32 STREAM_ARRIVALS = 32;
#endif
// By all lanes of the producing warp, each of which has seen (itself, or across a warp barrier)
// that the slot's readers have left it; addresses and bytes in multiples of 16. `full` then passes
// once the bytes are there.
DEVICE void stream_chunk(void* to_shared, const void* from, u32 bytes, u64* full, u64 policy) {
  u32 thread = threadIdx.x & 31;
#if HOPPER
  if (thread != 0) return;
  bulk_fence();  // the readers' loads, which it has seen the end of, before the copy's writes
  barrier_expect(full, bytes);
  bulk_load(to_shared, from, bytes, full, policy);
#else
  u32 to = shared_address(to_shared) + thread * 16;
  const u8* source = static_cast<const u8*>(from) + thread * 16;
  for (u32 i = thread * 16; i < bytes; i += 32 * 16, to += 32 * 16, source += 32 * 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(source), "l"(policy)
                 : "memory");
  }
  // Arrives once this thread's copies so far have landed; noinc: it is one of the counted arrivals.
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full))
               : "memory");
#endif
}
