// Litmus tests of the memory model, many rounds of one at a time: bench/gpu/litmus writes what each
// thread does (shapes.h). A round has places of its own, all zero before; its threads begin
// together and leave what they found.
#include "params.h"
#include "primitives.cuh"

enum Order : u32 { WEAK, RELAXED, ACQUIRE, RELEASE, ACQ_REL };
enum Scope : u32 { CTA, GPU, SYS };

constexpr u32 PLACE_WORDS = 32;  // a cache line each

struct Player {
  u32* places;
  u32* found;  // [MOST_REGISTERS], then whether a wait did not end
  u32 thread;
  u32 patience;  // looks of a wait
  bool acts;     // the one lane of its warp that does
};

#if defined(MONOLANE_EMULATED)
template <Order ORDER, Scope SCOPE>
DEVICE void put(u32* to, u32 value) {
  if (ORDER == RELEASE) fence_device();
  store_relaxed(to, value);
}
template <Order ORDER, Scope SCOPE>
DEVICE u32 get(const u32* from) {
  return load_relaxed(from);
}
template <Order ORDER, Scope SCOPE>
DEVICE void add_at(u32* to, u32 value) {
  ORDER == RELEASE ? add_release(to, value) : static_cast<void>(add_relaxed(to, value));
}
template <Scope SCOPE>
DEVICE void fence() {
  SCOPE == CTA ? fence_block() : fence_device();
}
#else
#define PUT(order, scope, text)                                       \
  if constexpr (ORDER == order && SCOPE == scope) {                   \
    asm volatile(text " [%0], %1;" ::"l"(to), "r"(value) : "memory"); \
  }
#define GET(order, scope, text)                                           \
  if constexpr (ORDER == order && SCOPE == scope) {                       \
    asm volatile(text " %0, [%1];" : "=r"(value) : "l"(from) : "memory"); \
  }
template <Order ORDER, Scope SCOPE>
DEVICE void put(u32* to, u32 value) {
  if constexpr (ORDER == WEAK) {
    asm volatile("st.weak.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
  }
  PUT(RELAXED, CTA, "st.relaxed.cta.global.u32")
  PUT(RELAXED, GPU, "st.relaxed.gpu.global.u32")
  PUT(RELAXED, SYS, "st.relaxed.sys.global.u32")
  PUT(RELEASE, CTA, "st.release.cta.global.u32")
  PUT(RELEASE, GPU, "st.release.gpu.global.u32")
  PUT(RELEASE, SYS, "st.release.sys.global.u32")
}
template <Order ORDER, Scope SCOPE>
DEVICE u32 get(const u32* from) {
  u32 value = 0;
  if constexpr (ORDER == WEAK) {
    asm volatile("ld.weak.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  }
  GET(RELAXED, CTA, "ld.relaxed.cta.global.u32")
  GET(RELAXED, GPU, "ld.relaxed.gpu.global.u32")
  GET(RELAXED, SYS, "ld.relaxed.sys.global.u32")
  GET(ACQUIRE, CTA, "ld.acquire.cta.global.u32")
  GET(ACQUIRE, GPU, "ld.acquire.gpu.global.u32")
  GET(ACQUIRE, SYS, "ld.acquire.sys.global.u32")
  return value;
}
template <Order ORDER, Scope SCOPE>
DEVICE void add_at(u32* to, u32 value) {
  PUT(RELAXED, GPU, "red.relaxed.gpu.global.add.u32")
  PUT(RELEASE, GPU, "red.release.gpu.global.add.u32")
}
template <Scope SCOPE>
DEVICE void fence() {
  if constexpr (SCOPE == CTA) fence_block();
  if constexpr (SCOPE == GPU) fence_device();
  if constexpr (SCOPE == SYS) fence_system();
}
#endif

template <Order ORDER, Scope SCOPE>
DEVICE void store(const Player& a, u32 place, u32 value) {
  if (a.acts) put<ORDER, SCOPE>(a.places + place * PLACE_WORDS, value);
}
template <Order ORDER, Scope SCOPE>
DEVICE void load(const Player& a, u32 at, u32 place) {
  if (a.acts) a.found[at] = get<ORDER, SCOPE>(a.places + place * PLACE_WORDS);
}
// A wait that does not end goes on as if it had: others may need this warp at a barrier.
template <Order ORDER, Scope SCOPE>
DEVICE void await_value(const Player& a, u32 at, u32 place, u32 value);
template <Order ORDER, Scope SCOPE>
DEVICE void add(const Player& a, u32 place, u32 value) {
  if (a.acts) add_at<ORDER, SCOPE>(a.places + place * PLACE_WORDS, value);
}
template <Order ORDER, Scope SCOPE>
DEVICE void swap(const Player& a, u32 at, u32 place, u32 expected, u32 value) {
  if (a.acts) a.found[at] = swap_if(a.places + place * PLACE_WORDS, expected, value);
}

#include "shapes.h"

template <Order ORDER, Scope SCOPE>
DEVICE void await_value(const Player& a, u32 at, u32 place, u32 value) {
  if (!a.acts) return;
  const u32* from = a.places + place * PLACE_WORDS;
  u32 got = get<ORDER, SCOPE>(from);
  for (u32 look = 0; got != value && look < a.patience; ++look) got = get<ORDER, SCOPE>(from);
  a.found[at] = got;
  if (got != value) a.found[MOST_REGISTERS] = 1;
}

// All threads of an instance, so that their round begins at one time.
DEVICE bool meet(u32* counter, u32 wanted, const Watchdog& dog) {
  add_relaxed(counter, 1);
  while (load_relaxed(counter) < wanted) {
    if (starved(dog, WAIT_COUNTER, wanted)) return false;
  }
  return true;
}

// `blocks` blocks make one instance of a test; `players` says which thread of it each warp is.
KERNEL(litmus, LitmusParams, MOST_THREADS * 32) {
  const u32 instance = block_index() / p.blocks, block = block_index() % p.blocks;
  const u32 thread = p.players[block * MOST_THREADS + warp_index()];
  if (thread >= MOST_THREADS) return;
  const Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  const bool acts = warp_thread() == 0;
  constexpr u32 EACH = MOST_REGISTERS + 1;
  for (u32 round = 0; round < p.rounds; ++round) {
    const u64 number = static_cast<u64>(instance) * p.rounds + round;
    u32 found[EACH] = {};
    bool begins = true;
    if (acts) begins = meet(p.counters + instance * 32, (round + 1) * p.threads, dog);
    if (!warp_all(begins)) return;
    const Player a{p.places + number * (MOST_PLACES * PLACE_WORDS), found, thread, p.patience,
                   acts};
    run_shape(a, p.test);
    if (!acts) continue;
    for (u32 i = 0; i < EACH; ++i) p.found[(number * MOST_THREADS + thread) * EACH + i] = found[i];
  }
}
