// A launch: its blocks are laid out, run to their end, and what they left is looked at.
#include <sched.h>
#include <stdio.h>

#include <algorithm>
#include <string>

#include "memory.h"

namespace emulator {
namespace {

constexpr u8 GUARD = 0xfd;  // behind the shared memory of each block
constexpr size_t GUARD_BYTES = 256;

void leave(Lane& l) {
  Block& b = *l.warp->block;
  retire(l, 0);
  l.done = true;
  l.warp->progress = true;
  b.live -= 1;
  machine->live -= 1;
  if (b.live == 0) {
    if (b.flying) return set_error("block %u left with %u copies in flight", b.index, b.flying);
    u32 bytes = b.grid->shared;
    for (size_t i = 0; i < GUARD_BYTES; ++i) {
      if (b.shared[bytes + i] != GUARD) {
        return set_error("block %u wrote beyond its %u bytes of shared memory", b.index, bytes);
      }
    }
    memset(b.shared, POISON, bytes);  // a peer that still reads finds out
  }
  Cluster& c = *b.cluster;
  c.live -= 1;
  if (c.live && c.meeting.arrived == c.live) release(c.meeting);
}

void lane_main() {
#ifdef __SANITIZE_ADDRESS__
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!machine->host_stack) machine->host_stack = bottom, machine->host_stack_bytes = bytes;
#endif
  Lane& l = self();
  const Grid& grid = *l.warp->block->grid;
  grid.kernel(grid.params);
  if (machine->stacks.overflowed(l.stack)) {
    set_error("a thread's stack of %zu bytes overflowed", STACK_BYTES);
  } else {
    leave(l);
  }
  void* nowhere;
  switch_from(&nowhere, next_ready(l.thread % 32));
  abort();
}

// ---- events ------------------------------------------------------------------------------------
// Somebody goes on after all: no watchdog shall bark only because another warp overslept.
void wake_sleepers() {
  Machine& m = *machine;
  u64 longest = 1u << m.mood.backoff;
  for (Event& e : m.events) {
    if (e.kind == TURN && e.when > m.now + longest) e.when = m.now + 1 + draw() % longest;
  }
  std::make_heap(m.events.begin(), m.events.end());
  for (Warp& w : m.warps) w.backoff = std::min(w.backoff, m.mood.backoff);
  m.stretched = false;
}

void take_turn(Warp& w) {
  w.queued = false;
  if (w.dead) return;
  w.progress = false;
  machine->running = &w;
  machine->schedule->turns += 1;
  if (Lane* first = next_ready(draw() % 32)) switch_from(&machine->stack_pointer, first);
  machine->running = nullptr;
  current = nullptr;
  if (w.progress) {
    w.backoff = 0;
    machine->idle_turns = 0;
    if (machine->stretched) wake_sleepers();
  } else {
    note_idle(w);
    bool idle = quiescent();
    if (idle) machine->stretched = true;
    w.backoff = std::min(w.backoff + 1, idle ? 30u : machine->mood.backoff);
  }
  w.ready |= w.polled;
  w.polled = 0;
  if (w.ready && !w.queued) queue_turn(w, pause_of(w));
}

void take_landing(u32 index) {
  Copy c = machine->flights[index];
  machine->free_flights.push_back(index);
  machine->flying -= 1;
  c.block->flying -= 1;
  machine->idle_turns = 0;
  if (c.block->live || !machine->schedule->dies) land(c);
}

void take_drain(Block& block) {
  StoreBuffer& b = block.stores;
  b.draining = false;
  drain_some(b);
  if (!b.pending.empty()) queue_drain(block);
}

void take_link(u32 index) {
  StoreBuffer& b = machine->blocks[index].links;
  drain_some(b);
  b.draining = !b.pending.empty();
  if (b.draining) push_event(1 + draw() % machine->mood.link, LINK, index);
}

// The device stops where it is; what it had on its way is lost.
void take_death(u32 device) {
  Machine& m = *machine;
  for (Block& b : m.blocks) {
    if (b.grid != m.grids + device) continue;
    m.live -= b.live;
    b.live = 0;
    m.buffered -= static_cast<u32>(b.stores.pending.size() + b.links.pending.size());
    b.stores.pending.clear(), b.links.pending.clear();
  }
  for (Warp& w : m.warps) {
    if (w.block->grid == m.grids + device) w.dead = true, w.ready = w.polled = 0;
  }
  m.idle_turns = 0;
}

void take_host_store(const HostStore& s) {
  write_now(reinterpret_cast<u8*>(s.at), s.value, 4);
  machine->host_stores -= 1;
  machine->idle_turns = 0;
}

// Who waits where: the first few groups of threads.
std::string who_waits() {
  std::string text;
  u32 told = 0;
  for (Warp& w : machine->warps) {
    for (u32 i = 0; i < 32;) {
      u32 begin = i;
      const char* at = w.lanes[i].done ? "the end" : w.lanes[i].waits_at;
      while (i < 32 && (w.lanes[i].done ? "the end" : w.lanes[i].waits_at) == at) ++i;
      if (w.lanes[begin].done && w.lanes[i - 1].done && i - begin == 32) continue;
      if (++told > 12) return text + "; ...";
      char line[128];
      snprintf(line, sizeof(line), "%sblock %u threads %u-%u at %s", told > 1 ? "; " : "",
               w.block->index, w.lanes[begin].thread, w.lanes[i - 1].thread, at ? at : "a poll");
      text += line;
    }
  }
  return text;
}

void run_events() {
  Machine& m = *machine;
  while (m.live && !m.error) {
    if (m.events.empty()) {
      return set_error("deadlock: nobody can go on: %s", who_waits().c_str());
    }
    if (m.idle_turns > 4096 * m.warps.size() && quiescent()) {
      return set_error("livelock: nothing is left that could change what is polled: %s",
                       who_waits().c_str());
    }
    if (m.schedule->host_time && m.idle_turns % (8 * m.warps.size() + 1) == 8 * m.warps.size()) {
      sched_yield();  // what this kernel polls may be up to another thread of the host
    }
    std::pop_heap(m.events.begin(), m.events.end());
    Event e = m.events.back();
    m.events.pop_back();
    m.now = std::max(m.now, e.when);
    if (e.kind == TURN) take_turn(m.warps[e.index]);
    if (e.kind == LANDING) take_landing(e.index);
    if (e.kind == DRAIN) take_drain(m.blocks[e.index]);
    if (e.kind == HOST) take_host_store(m.schedule->stores[e.index]);
    if (e.kind == LINK) take_link(e.index);
    if (e.kind == DEATH) take_death(e.index);
  }
}

// ---- the launch --------------------------------------------------------------------------------
struct Wave {  // blocks [first, last) of a grid
  const Grid* grid;
  u32 first, last;
};

class SharedMemory {  // of one block: poisoned, at an alignment of 1024, guarded
 public:
  explicit SharedMemory(u32 bytes) {
    size_t all = (bytes + GUARD_BYTES + 1023) / 1024 * 1024;
    at_.reset(static_cast<u8*>(aligned_alloc(1024, all)));
    memset(at_.get(), POISON, bytes);
    memset(at_.get() + bytes, GUARD, all - bytes);
  }
  u8* at() const { return at_.get(); }

 private:
  struct Free {
    void operator()(u8* at) const { free(at); }
  };
  std::unique_ptr<u8, Free> at_;
};

// Vectors are sized first, because everything points into them.
void lay_out(const std::vector<Wave>& waves, std::vector<SharedMemory>& shared) {
  Machine& m = *machine;
  u32 blocks = 0, clusters = 0, lanes = 0;
  for (const Wave& w : waves) {
    blocks += w.last - w.first;
    clusters += (w.last - w.first + w.grid->cluster - 1) / w.grid->cluster;
    lanes += (w.last - w.first) * w.grid->threads;
  }
  m.blocks = std::vector<Block>(blocks);
  m.clusters = std::vector<Cluster>(clusters);
  m.warps = std::vector<Warp>(lanes / 32);
  m.lanes = std::vector<Lane>(lanes);
  m.live = lanes;
  u32 block = 0, warp = 0, lane = 0;
  Cluster* cluster = m.clusters.data();
  for (const Wave& w : waves) {
    for (u32 i = w.first; i < w.last; ++i, ++block) {
      Block& b = m.blocks[block];
      shared.emplace_back(w.grid->shared);
      b.grid = w.grid, b.index = i, b.sm = block, b.shared = shared.back().at();
      b.live = w.grid->threads;
      b.cluster = cluster + (i - w.first) / w.grid->cluster;
      b.cluster->live += b.live;
      for (u32 t = 0; t < b.live; ++t, ++lane) {
        Lane& l = m.lanes[lane];
        l.warp = &m.warps[warp + t / 32];
        l.thread = t, l.stack = lane, l.fuel = 256;
        l.stack_pointer = m.stacks.prepare(lane, lane_main);
      }
      for (u32 j = 0; j < b.live / 32; ++j, ++warp) {
        Warp& v = m.warps[warp];
        v.block = &b, v.lanes = &m.lanes[warp * 32], v.ready = 0xffffffffu;
      }
    }
    cluster += (w.last - w.first + w.grid->cluster - 1) / w.grid->cluster;
  }
}

void run_waves(const std::vector<Wave>& waves) {
  Machine& m = *machine;
  u32 lanes = 0;
  for (const Wave& w : waves) lanes += (w.last - w.first) * w.grid->threads;
  if (!m.stacks.reserve(lanes)) return set_error("no memory for the stacks of %u threads", lanes);
  std::vector<SharedMemory> shared;
  lay_out(waves, shared);
  std::vector<u64> late(m.grid_count, 0);
  if (m.schedule->skew) {
    for (u64& ticks : late) ticks = draw() % m.schedule->skew;
  }
  for (Warp& w : m.warps) queue_turn(w, pause_of(w) + late[w.block->grid - m.grids]);
  run_events();
  m.events.clear();
  if (m.error) return;
  for (Block& b : m.blocks) drain_all(b.stores), drain_all(b.links);
}

bool fits(const Grid& g) {
  if (g.threads == 0 || g.threads % 32 || g.threads > 1024 || g.cluster == 0 ||
      g.blocks % g.cluster) {
    set_error(
        "a grid of %u blocks of %u threads in clusters of %u: expected warps of 32 threads, "
        "at most 1024, and whole clusters",
        g.blocks, g.threads, g.cluster);
  }
  return !machine->error;
}

// One grid runs in waves of `sms` blocks; several must be resident together.
void run(const Grid* grids, u32 count) {
  u32 sms = machine->schedule->sms, blocks = 0;
  for (u32 i = 0; i < count; ++i) {
    if (!fits(grids[i])) return;
    blocks += grids[i].blocks;
  }
  if (count > 1 && blocks > sms) {
    return set_error("%u grids of %u blocks in all: expected at most %u", count, blocks, sms);
  }
  if (count > 1) {
    if (grids->memory) {
      for (u32 i = 0; i < count; ++i) {
        size_t bytes = static_cast<size_t>(grids[i].memory_end - grids[i].memory);
        machine->linked.push_back(std::vector<bool>(bytes / 8 + 1));
      }
    }
    std::vector<Wave> waves;
    for (u32 i = 0; i < count; ++i) waves.push_back({grids + i, 0, grids[i].blocks});
    return run_waves(waves);
  }
  for (u32 first = 0; first < grids->blocks && !machine->error; first += sms) {
    run_waves({{grids, first, std::min(first + sms, grids->blocks)}});
  }
}

}  // namespace
}  // namespace emulator

// Runs the grids to their end; null, or what went wrong. The text is the thread's until its next
// launch.
extern "C" [[gnu::visibility("default")]] const char* emulate(const emulator::Grid* grids,
                                                              u32 count,
                                                              emulator::Schedule* schedule) {
  using namespace emulator;
  Machine m;
  m.schedule = schedule;
  m.grids = grids, m.grid_count = count;
  m.random = 0x9e3779b97f4a7c15ull * (schedule->seed + 1);
  if (m.random == 0) m.random = 1;
  machine = &m;
  for (int i = 0; i < 8; ++i) draw();  // neighbouring seeds begin alike
  m.mood = MOODS[schedule->mood ? (schedule->mood - 1) % MOOD_COUNT : draw() % MOOD_COUNT];
  schedule->ticks = schedule->turns = schedule->switches = 0;
  m.host_stores = schedule->store_count;
  for (u32 i = 0; i < schedule->store_count; ++i) push_event(schedule->stores[i].when, HOST, i);
  if (schedule->dies) push_event(schedule->dies_at, DEATH, schedule->dies - 1);
  run(grids, count);
  schedule->ticks = m.now;
  machine = nullptr;
  return m.error;
}
