// The device primitives that every probe is written against: identity, clocks, memory accesses with
// a stated order and scope, mbarriers, bulk copies, clusters, matrix instructions. Plain PTX
// instead of the toolkit's headers, so that NVRTC compiles a probe without any include path, and so
// that a host build (MONOLANE_EMULATED, see tests/bench/emulator.h) can run the very same kernels.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Vec4 {
  u32 x, y, z, w;
};

// Bulk copies, mbarriers with byte counts, clusters, dependent launches: sm_90 and later.
#if defined(MONOLANE_EMULATED) || __CUDA_ARCH__ >= 900
#define HOPPER 1
#else
#define HOPPER 0
#endif

#ifdef MONOLANE_EMULATED
#include "emulator.h"
#else

#define DEVICE static __device__ __forceinline__
// One block per SM is what every probe assumes, so registers are capped by the threads alone.
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
DEVICE void block_barrier() { __syncthreads(); }
DEVICE void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE bool warp_all(bool here) { return __all_sync(0xffffffffu, here) != 0; }
DEVICE u32 shuffle_xor(u32 value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
DEVICE float shuffle_xor(float value, u32 mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

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
DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// System scope: what a peer GPU or the host may write or read.
DEVICE u32 load_relaxed_system(const u32* from) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
DEVICE void store_relaxed_system(u32* to, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
DEVICE u32 add_relaxed(u32* to, u32 value) { return atomicAdd(to, value); }
DEVICE u32 swap_if(u32* at, u32 expected, u32 value) { return atomicCAS(at, expected, value); }
// A word of shared memory that another warp of the block writes without a barrier.
DEVICE u32 shared_peek(const u32* from) { return *const_cast<const volatile u32*>(from); }
DEVICE void shared_poke(u32* to, u32 value) { *const_cast<volatile u32*>(to) = value; }

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

// ---- matrix instructions (sm_80 and later) -----------------------------------------------------
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

// ---- number formats ----------------------------------------------------------------------------
DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 bits_of_float(float value) { return __float_as_uint(value); }
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
DEVICE double log_double(double x) { return log(x); }
DEVICE float log_float(float x) { return logf(x); }
DEVICE float log1p_float(float x) { return log1pf(x); }
DEVICE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }

#if HOPPER
// ---- two e4m3 values (low 16 bits of the pair) to two f16 --------------------------------------
DEVICE u32 f16x2_of_e4m3x2(u32 pair) {
  u32 d;
  asm("{.reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p;}" : "=r"(d) : "r"(pair));
  return d;
}

// ---- mbarrier: 64 bits in shared memory; every wait names the parity of the phase it waits for --
DEVICE void barrier_init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// Publishes the mbarrier.init above to the copy engine and to the cluster; a block or cluster
// barrier must follow before anyone else arrives or waits.
DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void barrier_expect(u64* barrier, u32 bytes) {  // one arrival, and `bytes` to come
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
DEVICE void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
DEVICE bool barrier_passed(u64* barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// ---- 1-D bulk copies ---------------------------------------------------------------------------
DEVICE u64 policy_evict_first() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
DEVICE void bulk_load(void* to_shared, const void* from, u32 bytes, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to_shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
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
#endif  // MONOLANE_EMULATED

// ---- what both builds share --------------------------------------------------------------------
DEVICE u32 lane_index() { return thread_index() & 31; }
DEVICE u32 warp_index() { return thread_index() >> 5; }

// A word of test data: a counter hash, so that any word's value is known without reading memory.
DEVICE u32 test_word(u64 index, u32 seed) {
  u32 v =
      static_cast<u32>(index) * 0x9e3779b1u + static_cast<u32>(index >> 32) * 0x85ebca77u + seed;
  v = (v ^ (v >> 16)) * 0x7feb352du;
  v = (v ^ (v >> 15)) * 0x846ca68bu;
  return v ^ (v >> 16);
}

DEVICE u32 warp_sum(u32 value) {
  for (u32 mask = 16; mask; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}
DEVICE float warp_sum(float value) {
  for (u32 mask = 16; mask; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}

// Every spin asks its watchdog; the first that starves says which wait it was. The deadline belongs
// to the kernel, not to the wait, so that all blocks of a starved kernel give up together.
struct Watchdog {
  u32* fault;  // [4] wait id (0: none), block, SM, detail
  u64 start;
  u64 limit;  // SM cycles
};
DEVICE Watchdog watchdog(u32* fault, u64 limit) { return Watchdog{fault, clock_cycles(), limit}; }
// For waits that end when another wait has given up: they must not be the first to complain.
DEVICE Watchdog patient(Watchdog dog) {
  dog.limit *= 2;
  return dog;
}
DEVICE bool starved(const Watchdog& dog, u32 wait, u32 detail) {
  if (clock_cycles() - dog.start < dog.limit) return false;
  if (swap_if(dog.fault, 0, wait) == 0) {
    store_relaxed(dog.fault + 1, block_index());
    store_relaxed(dog.fault + 2, sm_id());
    store_relaxed(dog.fault + 3, detail);
  }
  return true;
}

enum Wait : u32 {
  WAIT_RING_FULL = 1,
  WAIT_RING_EMPTY = 2,
  WAIT_SENTINEL = 3,
  WAIT_COUNTER = 4,
  WAIT_REMOTE_BARRIER = 5,
  WAIT_FINISHED = 6,
  WAIT_MAILBOX = 7,
  WAIT_PEERS_STARTED = 8,
  WAIT_HOST = 9,
  WAIT_CANDIDATES = 10,
};
