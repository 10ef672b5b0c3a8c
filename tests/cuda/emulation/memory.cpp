// Memory as an SM sees it: see memory.h.
#include "memory.h"

namespace emulator {

// ---- stores on their way -----------------------------------------------------------------------
static u16& near(StoreBuffer& b, const u8* at) {
  return b.near[reinterpret_cast<uintptr_t>(at) / 8 % NEAR];
}
static bool overlap(const u8* a, u32 a_bytes, const u8* b, u32 b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

void write_now(u8* at, u64 value, u32 bytes) {
  if (bytes == 8) {
    __atomic_store_n(reinterpret_cast<u64*>(at), value, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(reinterpret_cast<u32*>(at), static_cast<u32>(value), __ATOMIC_RELEASE);
  }
}
static u64 read_now(const u8* at, u32 bytes) {
  return bytes == 8 ? __atomic_load_n(reinterpret_cast<const u64*>(at), __ATOMIC_ACQUIRE)
                    : __atomic_load_n(reinterpret_cast<const u32*>(at), __ATOMIC_ACQUIRE);
}

// Drains the stores that `which` names.
template <typename Which>
static void drain(StoreBuffer& b, Which which) {
  size_t kept = 0;
  for (const Store& s : b.pending) {
    if (which(s)) {
      write_now(s.at, s.value, s.bytes);
      near(b, s.at) -= 1;
      machine->buffered -= 1;
      machine->idle_turns = 0;
    } else {
      b.pending[kept++] = s;
    }
  }
  b.pending.resize(kept);
}
void drain_some(StoreBuffer& b) {
  drain(b, [](const Store&) { return chance(2); });
}
void drain_all(StoreBuffer& b) {
  drain(b, [](const Store&) { return true; });
}
void drain_at(StoreBuffer& b, const void* pointer, u32 bytes) {
  const u8* at = static_cast<const u8*>(pointer);
  if (near(b, at)) drain(b, [&](const Store& s) { return overlap(s.at, s.bytes, at, bytes); });
}

void queue_drain(Block& block) {
  if (block.stores.draining) return;
  block.stores.draining = true;
  push_event(1 + draw() % machine->mood.drain, DRAIN,
             static_cast<u32>(&block - machine->blocks.data()));
}

void check_aligned(const void* at, u32 bytes, const char* what) {
  if (reinterpret_cast<uintptr_t>(at) % bytes) EMULATOR_FAIL("a misaligned %s", what);
}

// ---- several devices ---------------------------------------------------------------------------
// The device in whose memory something lies; -1: the host's, or there is but one device.
static i32 owner_of(const void* at) {
  const u8* byte = static_cast<const u8*>(at);
  for (size_t i = 0; i < machine->linked.size(); ++i) {
    const Grid& g = machine->grids[i];
    if (byte >= g.memory && byte < g.memory_end) return static_cast<i32>(i);
  }
  return -1;
}
static i32 own_device() { return static_cast<i32>(own_block().grid - machine->grids); }
void check_own(const void* at, const char* what) {
  if (machine->linked.empty()) return;
  i32 owner = owner_of(at);
  if (owner >= 0 && owner != own_device()) {
    EMULATOR_FAIL("device %d: a %s in the memory of device %d", own_device(), what, owner);
  }
}
void check_scope(const void* at) {
  if (machine->linked.empty()) return;
  i32 owner = owner_of(at);
  if (owner < 0 || owner != own_device()) return;
  size_t word = static_cast<size_t>(static_cast<const u8*>(at) - machine->grids[owner].memory) / 8;
  if (machine->linked[owner][word]) {
    EMULATOR_FAIL("device %d: a load of device scope of a word that comes over a link", owner);
  }
}

void store_late(void* to, u64 value, u32 bytes) {
  check_aligned(to, bytes, "store");
  check_own(to, "store of device scope");
  Block& block = own_block();
  StoreBuffer& b = block.stores;
  u8* at = static_cast<u8*>(to);
  drain_at(b, at, bytes);  // stores to one place stay in order
  b.pending.push_back({at, value, bytes});
  near(b, at) += 1;
  machine->buffered += 1;
  queue_drain(block);
  advance();
  maybe_yield(16);
}

void store_across(void* to, u64 value, u32 bytes) {
  i32 owner = machine->linked.empty() ? -1 : owner_of(to);
  if (owner < 0 || owner == own_device()) return store_late(to, value, bytes);
  check_aligned(to, bytes, "store");
  Block& block = own_block();
  u8* at = static_cast<u8*>(to);
  machine->linked[owner][static_cast<size_t>(at - machine->grids[owner].memory) / 8] = true;
  drain_at(block.links, at, bytes);
  block.links.pending.push_back({at, value, bytes});
  near(block.links, at) += 1;
  machine->buffered += 1;
  if (!block.links.draining) {
    block.links.draining = true;
    push_event(1 + draw() % machine->mood.link, LINK,
               static_cast<u32>(&block - machine->blocks.data()));
  }
  advance();
  maybe_yield(16);
}

static u64 load_own(const void* from, u32 bytes) {  // with the SM's own stores on top
  const u8* at = static_cast<const u8*>(from);
  u64 value = read_now(at, bytes);
  StoreBuffer& b = own_block().stores;
  if (!near(b, at)) return value;
  for (const Store& s : b.pending) {
    if (!overlap(s.at, s.bytes, at, bytes)) continue;
    for (u32 i = 0; i < s.bytes; ++i) {
      if (s.at + i < at || s.at + i >= at + bytes) continue;
      u32 shift = static_cast<u32>(s.at + i - at) * 8;
      value = (value & ~(0xffull << shift)) | ((s.value >> 8 * i & 0xff) << shift);
    }
  }
  return value;
}
u64 observe_word(const void* from, u32 bytes) {
  check_aligned(from, bytes, "load");
  check_own(from, "load");
  return observe(from, [&] { return load_own(from, bytes); });
}

void fence() {  // everything that this SM has stored is visible before anything after
  drain_all(own_block().stores);
  advance();
  maybe_yield(16);
}
void fence_links() {  // and on other devices
  drain_all(own_block().links);
  fence();
}

// ---- mbarrier ----------------------------------------------------------------------------------
constexpr u32 BARRIER_MARK = 0x5aa5 >> 1;
struct Barrier {  // a bit field of the 64 bits that the kernel has reserved
  u64 phase : 1, expected : 12, pending : 12, bytes : 25, mark : 14;
};
static_assert(sizeof(Barrier) == 8, "an mbarrier is 64 bits");
constexpr u32 MARK = BARRIER_MARK & 0x3fff;

static Barrier get_barrier(const u64* at) {
  Barrier b;
  memcpy(&b, at, 8);
  return b;
}
static void put_barrier(u64* at, Barrier b) {
  if (b.pending == 0 && b.bytes == 0) {
    b.phase = !b.phase;
    b.pending = b.expected;
  }
  memcpy(at, &b, 8);
}
static Barrier checked_barrier(const u64* at) {
  Barrier b = get_barrier(at);
  if (b.mark != MARK) EMULATOR_FAIL("an mbarrier was used that is not initialised");
  return b;
}
void init_barrier(u64* at, u32 arrivals) {
  if (arrivals == 0 || arrivals > 4095) {
    EMULATOR_FAIL("an mbarrier of %u arrivals: expected 1 to 4095", arrivals);
  }
  Barrier b{};
  b.expected = arrivals, b.pending = arrivals, b.mark = MARK;
  memcpy(at, &b, 8);
  advance();
}
void arrive(u64* at, u32 bytes) {
  Barrier b = checked_barrier(at);
  if (b.pending == 0) {
    EMULATOR_FAIL("an mbarrier got more arrivals than it was initialised for");
  }
  b.bytes = b.bytes + bytes;
  b.pending = b.pending - 1;
  put_barrier(at, b);
  advance();
  maybe_yield(4);  // whatever the arrival gave away may now be taken
}
bool passed(const u64* at, u32 parity) {
  return observe(at, [&] { return static_cast<u64>(checked_barrier(at).phase); }) != parity;
}

// ---- copies ------------------------------------------------------------------------------------
void land(const Copy& c) {
  for (u32 i = 0; i < c.count; ++i) memcpy(c.to + i * c.stride, c.from + i * c.stride, c.bytes);
  if (!c.barrier) return;
  Barrier b = get_barrier(c.barrier);
  u64 bytes = c.arrives ? 0 : static_cast<u64>(c.bytes) * c.count;
  if (b.mark != MARK) return set_error("a copy completed on an mbarrier that is not initialised");
  if (b.bytes < bytes) return set_error("a bulk copy completed more bytes than were expected");
  if (c.arrives && b.pending == 0) {
    return set_error("an mbarrier got more arrivals than it was initialised for");
  }
  b.bytes = b.bytes - bytes;
  b.pending = b.pending - c.arrives;
  put_barrier(c.barrier, b);
}

void check_copy(const void* shared, const void* other, u32 bytes) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(other) | bytes) % 16) {
    EMULATOR_FAIL("a copy of %u bytes: expected addresses and size in multiples of 16", bytes);
  }
  check_own(other, "copy");
  Block& block = own_block();
  const u8* at = static_cast<const u8*>(shared);
  if (at < block.shared || at + bytes > block.shared + block.grid->shared) {
    EMULATOR_FAIL("a copy of %u bytes reaches beyond the block's shared memory", bytes);
  }
}

void fly(Copy c) {
  for (u32 i = 0; i < c.count; ++i) memset(c.to + i * c.stride, POISON, c.bytes);
  c.block = &own_block();
  c.block->flying += 1;
  machine->flying += 1;
  u32 index;
  if (machine->free_flights.empty()) {
    index = static_cast<u32>(machine->flights.size());
    machine->flights.push_back(c);
  } else {
    index = machine->free_flights.back();
    machine->free_flights.pop_back();
    machine->flights[index] = c;
  }
  push_event(1 + draw() % machine->mood.landing, LANDING, index);
  advance();
  maybe_yield(8);
}

Pending& pending() {
  Lane& l = self();
  if (!l.pending) l.pending = std::make_unique<Pending>();
  return *l.pending;
}
// As late as a lane may find out: a group's copies are done when the lane has waited for them.
void commit() {
  Pending& p = pending();
  p.groups.push_back(std::move(p.open));
  p.open.clear();
  advance();
  maybe_yield(4);
}
void retire(Lane& l, size_t keep) {
  if (!l.pending) return;
  auto& groups = l.pending->groups;
  while (groups.size() > keep) {
    for (const Copy& c : groups.front()) land(c);
    groups.erase(groups.begin());
  }
}

}  // namespace emulator
