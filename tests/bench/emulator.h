// Past 500 lines on purpose: one header that the probe sources include in place of the device.
// A host build of the probes' device primitives: every CUDA thread is a fiber, all blocks of a
// launch are resident, and the order in which fibers run is drawn from a seed. Asynchronous copies
// land late and out of order into memory that was poisoned when they were issued, shared memory
// starts poisoned, and a barrier that not everybody reaches is reported. So the kernels' own source
// proves its protocols and its index arithmetic without a GPU. It is sequentially consistent:
// missing fences are not found here.
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include <cmath>
#include <memory>
#include <vector>

#define DEVICE [[maybe_unused]] static inline
#define KERNEL(name, Params, threads)                                                  \
  static void name##_body(const Params& p);                                            \
  extern "C" void name(const void* p) { name##_body(*static_cast<const Params*>(p)); } \
  extern "C" uint32_t name##_max_threads() { return threads; }                         \
  extern "C" uint32_t name##_params_size() { return sizeof(Params); }                  \
  static void name##_body([[maybe_unused]] const Params& p)

typedef u64 SharedAddress;

namespace emulator {

constexpr size_t STACK_BYTES = 64 * 1024;

struct Rendezvous {  // a reusable barrier
  u32 arrived = 0;
  u32 generation = 0;
};

struct Copy {
  u8* to;
  const u8* from;
  u32 bytes;
  u64* barrier;
};

struct Warp {
  u32 posted[32][8];
  Rendezvous meeting;
};

struct Cluster {
  u32 live = 0;
  Rendezvous meeting;
};

struct Block {
  u32 index;
  u8* shared;
  u32 live;
  Rendezvous barriers[16];
  std::vector<Warp> warps;
  Cluster* cluster;
};

struct Fiber {
  ucontext_t context;
  jmp_buf resume;
  bool started = false, done = false;
  u32 thread;
  Block* block;
  const u32* waits_on = nullptr;  // runnable once *waits_on != waits_for
  u32 waits_for = 0;
  u32 asleep = 0;                         // passes of the scheduler
  std::vector<std::vector<Copy>> groups;  // cp.async or bulk stores, oldest first
  std::vector<Copy> open;
};

struct Launch {
  u32 grid, block, shared, cluster, sms, seed, long_sleeps;
};

struct Machine {
  Launch launch;
  void (*kernel)(const void*);
  const void* params;
  jmp_buf scheduler;
  Fiber* current = nullptr;
  std::vector<Copy> flying;
  Rendezvous grid;
  u64 random;
  const char* error = nullptr;
};

static thread_local Machine* machine = nullptr;

inline u32 draw() {
  u64& r = machine->random;
  r ^= r << 13, r ^= r >> 7, r ^= r << 17;
  return static_cast<u32>(r >> 32);
}

inline Fiber& self() { return *machine->current; }

inline void fail(const char* what) {
  if (!machine->error) machine->error = what;
  _longjmp(machine->scheduler, 1);
}

__attribute__((noinline)) inline void yield() {
  Fiber& f = self();
  if (_setjmp(f.resume) == 0) _longjmp(machine->scheduler, 1);
}

inline void meet(Rendezvous& r, u32 expected) {
  if (++r.arrived == expected) {
    r.arrived = 0;
    r.generation += 1;
    return;
  }
  self().waits_on = &r.generation;
  self().waits_for = r.generation;
  yield();
}

// ---- mbarrier ----------------------------------------------------------------------------------
struct Barrier {
  u64 phase : 1, expected : 14, pending : 14, bytes : 35;
};
static_assert(sizeof(Barrier) == 8, "an mbarrier is 64 bits");

inline Barrier& barrier_at(u64* at) { return *reinterpret_cast<Barrier*>(at); }
inline void settle(Barrier& b) {
  if (b.pending == 0 && b.bytes == 0) {
    b.phase ^= 1;
    b.pending = b.expected;
  }
}
inline void arrive(u64* at) {
  Barrier& b = barrier_at(at);
  if (b.pending == 0) fail("an mbarrier got more arrivals than it was initialised for");
  b.pending -= 1;
  settle(b);
}
inline void land(const Copy& c) {
  memcpy(c.to, c.from, c.bytes);
  if (!c.barrier) return;
  Barrier& b = barrier_at(c.barrier);
  if (b.bytes < c.bytes) {
    if (!machine->error) machine->error = "a bulk copy completed more bytes than were expected";
    return;
  }
  b.bytes -= c.bytes;
  settle(b);
}
inline void check_bulk(const void* a, const void* b, u32 bytes) {
  if ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | bytes) % 16) {
    fail("a bulk copy needs addresses and size in multiples of 16 bytes");
  }
}
inline void retire(Fiber& f, size_t keep) {
  while (f.groups.size() > keep) {
    for (const Copy& c : f.groups.front()) land(c);
    f.groups.erase(f.groups.begin());
  }
}

inline void leave(Fiber& f) {
  f.done = true;
  f.block->live -= 1;
  if (f.block->live == 0) {  // a peer that still reads finds out
    memset(f.block->shared, 0xdd, machine->launch.shared);
  }
  Cluster& c = *f.block->cluster;
  c.live -= 1;
  if (c.live && c.meeting.arrived == c.live) {
    c.meeting.arrived = 0;
    c.meeting.generation += 1;
  }
}

inline void fiber_main() {
  machine->kernel(machine->params);
  leave(self());
  _longjmp(machine->scheduler, 1);
}

__attribute__((noinline)) inline void resume(Fiber& f) {
  machine->current = &f;
  if (_setjmp(machine->scheduler) == 0) {
    if (f.started) _longjmp(f.resume, 1);
    f.started = true;
    setcontext(&f.context);
  }
}

// Apart from its caller, because getcontext returns twice and would unsettle the caller's locals.
__attribute__((noinline)) inline void prepare(Fiber& f, u8* stack) {
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = stack;
  f.context.uc_stack.ss_size = STACK_BYTES;
  f.context.uc_link = nullptr;
  makecontext(&f.context, fiber_main, 0);
}

// Runs blocks [first, last) to their end; nullptr, or what went wrong.
inline const char* run_wave(u32 first, u32 last) {
  const Launch& l = machine->launch;
  u32 blocks = last - first, count = blocks * l.block;
  size_t stacks_bytes = count * STACK_BYTES;
  u8* stacks = static_cast<u8*>(mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (stacks == MAP_FAILED) return "no memory for the fibers' stacks";
  size_t shared_each = (l.shared + 1023) / 1024 * 1024 + 1024;
  std::vector<u8> shared(shared_each * blocks + 1024, 0xcd);
  u8* shared_base = reinterpret_cast<u8*>((reinterpret_cast<uintptr_t>(shared.data()) + 1023) &
                                          ~static_cast<uintptr_t>(1023));
  std::vector<Cluster> clusters((blocks + l.cluster - 1) / l.cluster);
  std::vector<Block> block_states(blocks);
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (u32 b = 0; b < blocks; ++b) {
    Block& s = block_states[b];
    s.index = first + b;
    s.shared = shared_base + b * shared_each;
    s.live = l.block;
    s.warps.resize((l.block + 31) / 32);
    s.cluster = &clusters[b / l.cluster];
    s.cluster->live += l.block;
    for (u32 t = 0; t < l.block; ++t) {
      fibers.emplace_back(new Fiber);
      Fiber& f = *fibers.back();
      f.thread = t;
      f.block = &s;
      prepare(f, stacks + (b * l.block + t) * STACK_BYTES);
    }
  }
  u32 live = count;
  while (live && !machine->error) {
    bool moved = false;
    for (size_t i = 0; i < machine->flying.size();) {
      moved = true;
      if (draw() & 1) {
        land(machine->flying[i]);
        machine->flying[i] = machine->flying.back();
        machine->flying.pop_back();
      } else {
        ++i;
      }
    }
    u32 start = draw() % count;
    for (u32 i = 0; i < count && !machine->error; ++i) {
      Fiber& f = *fibers[(start + i) % count];
      if (f.done) continue;
      if (f.waits_on) {
        if (*f.waits_on == f.waits_for) continue;
        f.waits_on = nullptr;
      }
      moved = true;
      // A thread may fall behind for a while: what a protocol forgets shows in long delays.
      if (f.asleep) {
        --f.asleep;
        continue;
      }
      u32 chance = draw();
      if (chance % 128 == 0) f.asleep = chance >> 16 & 63;
      if (l.long_sleeps && chance % 8192 == 1) f.asleep = chance >> 16 & 2047;
      resume(f);
      live -= f.done;
    }
    if (!moved && !machine->error) {
      machine->error = "deadlock: every thread waits at a barrier that not all of them reach";
    }
  }
  if (!machine->error && !machine->flying.empty()) {
    machine->error = "a kernel ended with bulk copies in flight";
  }
  for (auto& f : fibers) {
    if (!machine->error && !(f->groups.empty() && f->open.empty())) retire(*f, 0);
  }
  munmap(stacks, stacks_bytes);
  return machine->error;
}

// All lanes of a warp post up to 32 bytes and then see each other's.
template <typename Use>
inline void with_warp(const u32* mine, u32 words, Use use) {
  Fiber& f = self();
  Warp& w = f.block->warps[f.thread / 32];
  memcpy(w.posted[f.thread % 32], mine, words * 4);
  meet(w.meeting, 32);
  use(w);
  meet(w.meeting, 32);
}

inline float half_to_float(u32 h) {
  u32 sign = h >> 15 & 1, exponent = h >> 10 & 31, mantissa = h & 1023;
  float v = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
            : exponent == 31 ? (mantissa ? NAN : INFINITY)
                             : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25.0);
  return sign ? -v : v;
}
inline u32 float_to_half(float v) {  // exact values only, which is all the decoders produce
  if (v == 0) return std::signbit(v) ? 0x8000u : 0;
  int exponent;
  float m = std::frexp(std::fabs(v), &exponent);  // m in [0.5, 1)
  u32 sign = v < 0 ? 0x8000u : 0;
  if (exponent < -13) return sign | static_cast<u32>(std::ldexp(m, exponent + 24));
  return sign | static_cast<u32>((exponent + 14) << 10) | (static_cast<u32>(m * 2048) & 1023);
}
inline float e4m3_to_float(u32 b) {
  u32 exponent = b >> 3 & 15, mantissa = b & 7;
  float v = exponent ? std::ldexp(static_cast<float>(mantissa + 8), static_cast<int>(exponent) - 10)
                     : std::ldexp(static_cast<float>(mantissa), -9);
  return b & 128 ? -v : v;
}
inline float bf16_to_float(u32 h) {
  u32 bits = h << 16;
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

template <float (*DECODE)(u32)>
inline void mma(float (&c)[4], const Vec4& a, u32 b0, u32 b1) {
  u32 mine[6] = {a.x, a.y, a.z, a.w, b0, b1};
  u32 lane = self().thread % 32;
  with_warp(mine, 6, [&](Warp& w) {
    for (int i = 0; i < 4; ++i) {
      u32 row_half = i / 2, column = lane % 4 * 2 + i % 2;
      float total = 0;
      for (u32 k = 0; k < 16; ++k) {
        u32 quad = k % 8 / 2, high = k / 8;  // lane within the group of four, and word pair
        u32 aw = w.posted[lane / 4 * 4 + quad][high * 2 + row_half];
        u32 bw = w.posted[column * 4 + quad][4 + high];
        u32 shift = k % 2 * 16;
        total += DECODE(aw >> shift & 0xffff) * DECODE(bw >> shift & 0xffff);
      }
      c[i] += total;
    }
  });
}

}  // namespace emulator

extern "C" const char* emulate_launch(void (*kernel)(const void*), const emulator::Launch* launch,
                                      const void* params) {
  using namespace emulator;
  Machine m;
  m.launch = *launch;
  m.kernel = kernel;
  m.params = params;
  m.random = 0x9e3779b97f4a7c15ull * (launch->seed + 1);
  machine = &m;
  const char* error = nullptr;
  u32 wave = launch->sms;
  for (u32 first = 0; first < launch->grid && !error; first += wave) {
    u32 last = first + wave < launch->grid ? first + wave : launch->grid;
    error = run_wave(first, last);
  }
  machine = nullptr;
  return error;
}

// ---- the primitives of primitives.cuh
// ------------------------------------------------------------
DEVICE u8* dynamic_shared() { return emulator::self().block->shared; }
DEVICE u32 thread_index() { return emulator::self().thread; }
DEVICE u32 block_threads() { return emulator::machine->launch.block; }
DEVICE u32 block_index() { return emulator::self().block->index; }
DEVICE u32 block_count() { return emulator::machine->launch.grid; }
DEVICE u32 sm_id() {  // a permutation, so that nobody can take block and SM for the same
  u32 sms = emulator::machine->launch.sms;
  return sms - 1 - block_index() % sms;
}
DEVICE u64 time_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<u64>(t.tv_sec) * 1000000000ull + static_cast<u64>(t.tv_nsec);
}
DEVICE u64 clock_cycles() { return time_ns(); }
DEVICE void nap() { emulator::yield(); }

DEVICE void block_barrier() {
  emulator::meet(emulator::self().block->barriers[0], block_threads());
}
DEVICE void named_barrier(u32 id, u32 threads) {
  emulator::meet(emulator::self().block->barriers[id], threads);
}
DEVICE void emulated_grid_barrier() {
  emulator::meet(emulator::machine->grid, block_threads() * block_count());
}
DEVICE void warp_barrier() {
  emulator::with_warp(nullptr, 0, [](emulator::Warp&) {});
}
DEVICE u32 shuffle_xor(u32 value, u32 mask) {
  u32 lane = thread_index() % 32, got = 0;
  emulator::with_warp(&value, 1, [&](emulator::Warp& w) { got = w.posted[lane ^ mask][0]; });
  return got;
}
DEVICE float shuffle_xor(float value, u32 mask) {
  u32 bits;
  memcpy(&bits, &value, 4);
  bits = shuffle_xor(bits, mask);
  memcpy(&value, &bits, 4);
  return value;
}

DEVICE bool warp_all(bool here) {
  u32 mine = here;
  bool all = true;
  emulator::with_warp(&mine, 1, [&](emulator::Warp& w) {
    for (int i = 0; i < 32; ++i) all = all && w.posted[i][0];
  });
  return all;
}

DEVICE Vec4 load_once(const Vec4* from) { return *from; }
DEVICE void store_once(Vec4* to, Vec4 v) { *to = v; }
DEVICE u32 load_relaxed(const u32* from) {
  emulator::yield();
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}
DEVICE Vec4 load_relaxed(const Vec4* from) {  // torn: other threads run between the words
  const u32* w = reinterpret_cast<const u32*>(from);
  Vec4 v;
  v.x = load_relaxed(w), v.y = load_relaxed(w + 1), v.z = load_relaxed(w + 2),
  v.w = load_relaxed(w + 3);
  return v;
}
DEVICE void store_relaxed(u32* to, u32 value) {
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
  if (emulator::draw() & 1) emulator::yield();
}
DEVICE u32 load_acquire(const u32* from) {
  emulator::yield();
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
DEVICE void add_release(u32* to, u32 value) { __atomic_fetch_add(to, value, __ATOMIC_RELEASE); }
DEVICE void fence_device() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
DEVICE u32 load_relaxed_system(const u32* from) { return load_relaxed(from); }
DEVICE void store_relaxed_system(u32* to, u32 value) { store_relaxed(to, value); }
DEVICE void fence_system() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
DEVICE u32 add_relaxed(u32* to, u32 value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
DEVICE u32 swap_if(u32* at, u32 expected, u32 value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
DEVICE u32 shared_peek(const u32* from) { return *from; }
DEVICE void shared_poke(u32* to, u32 value) { *to = value; }

DEVICE void copy_async16(void* to, const void* from) {
  memset(to, 0xa5, 16);
  emulator::self().open.push_back(
      {static_cast<u8*>(to), static_cast<const u8*>(from), 16, nullptr});
}
DEVICE void copy_async_commit() {
  emulator::self().groups.push_back(std::move(emulator::self().open));
  emulator::self().open.clear();
  emulator::yield();
}
template <int PENDING>
DEVICE void copy_async_wait() {
  emulator::retire(emulator::self(), PENDING);
}

DEVICE void mma_bf16(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  emulator::mma<emulator::bf16_to_float>(c, a, b0, b1);
}
DEVICE void mma_f16(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  emulator::mma<emulator::half_to_float>(c, a, b0, b1);
}

DEVICE float float_of_bits(u32 bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}
DEVICE u32 bits_of_float(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}
DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  using namespace emulator;
  return float_to_half(half_to_float(a & 0xffff) - half_to_float(b & 0xffff)) |
         float_to_half(half_to_float(a >> 16) - half_to_float(b >> 16)) << 16;
}
DEVICE void floats_of_f16x2(u32 pair, float& low, float& high) {
  low = emulator::half_to_float(pair & 0xffff);
  high = emulator::half_to_float(pair >> 16);
}
DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) {
  u64 all = static_cast<u64>(b) << 32 | a;
  u32 out = 0;
  for (int i = 0; i < 4; ++i) out |= (all >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return out;
}
DEVICE double log_double(double x) { return std::log(x); }
DEVICE float log_float(float x) { return std::log(x); }
DEVICE float log1p_float(float x) { return std::log1p(x); }
DEVICE u32 multiply_high(u32 a, u32 b) { return static_cast<u32>(static_cast<u64>(a) * b >> 32); }
DEVICE u32 f16x2_of_e4m3x2(u32 pair) {
  using namespace emulator;
  return float_to_half(e4m3_to_float(pair & 255)) | float_to_half(e4m3_to_float(pair >> 8 & 255))
                                                        << 16;
}

DEVICE void barrier_init(u64* barrier, u32 arrivals) {
  emulator::Barrier& b = emulator::barrier_at(barrier);
  b.phase = 0, b.expected = arrivals, b.pending = arrivals, b.bytes = 0;
}
DEVICE void barrier_init_fence() {}
DEVICE void barrier_expect(u64* barrier, u32 bytes) {
  emulator::Barrier& b = emulator::barrier_at(barrier);
  b.bytes = b.bytes + bytes;
  emulator::arrive(barrier);
}
DEVICE void barrier_arrive(u64* barrier) { emulator::arrive(barrier); }
DEVICE bool barrier_passed(u64* barrier, u32 parity) {
  emulator::yield();
  return emulator::barrier_at(barrier).phase != parity;
}
DEVICE u64 policy_evict_first() { return 0; }
DEVICE void bulk_load_default(void* to, const void* from, u32 bytes, u64* barrier) {
  emulator::check_bulk(to, from, bytes);
  memset(to, 0xa5, bytes);
  emulator::machine->flying.push_back(
      {static_cast<u8*>(to), static_cast<const u8*>(from), bytes, barrier});
}
DEVICE void bulk_load(void* to, const void* from, u32 bytes, u64* barrier, u64) {
  bulk_load_default(to, from, bytes, barrier);
}
DEVICE void bulk_store(void* to, const void* from, u32 bytes) {
  emulator::check_bulk(to, from, bytes);
  emulator::self().open.push_back(
      {static_cast<u8*>(to), static_cast<const u8*>(from), bytes, nullptr});
}
DEVICE void bulk_commit() { copy_async_commit(); }
template <int PENDING>
DEVICE void bulk_wait_read() {
  emulator::retire(emulator::self(), PENDING);
}
DEVICE void bulk_wait_all() { emulator::retire(emulator::self(), 0); }

DEVICE u32 cluster_rank() { return block_index() % emulator::machine->launch.cluster; }
DEVICE void cluster_barrier() {
  emulator::Cluster& c = *emulator::self().block->cluster;
  emulator::meet(c.meeting, c.live);
}
DEVICE SharedAddress peer_address(const void* own, u32 rank) {
  emulator::Block* b = emulator::self().block;
  u32 mine = b->index % emulator::machine->launch.cluster;
  emulator::Block* peer = b + rank - mine;  // blocks of a wave lie side by side
  if (peer->live == 0) emulator::fail("the shared memory of a block that has left was addressed");
  return reinterpret_cast<u64>(peer->shared + (static_cast<const u8*>(own) - b->shared));
}
DEVICE void peer_store(SharedAddress to, u32 value) { *reinterpret_cast<u32*>(to) = value; }
DEVICE u32 peer_load(SharedAddress from) {
  emulator::yield();
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
