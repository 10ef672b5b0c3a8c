// Who runs when: see schedule.h.
#include "schedule.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <algorithm>

namespace emulator {

constexpr size_t ERROR_BYTES = 2048;
void set_error(const char* format, ...) {
  if (machine->error) return;
  static thread_local std::unique_ptr<char[]> text(new char[ERROR_BYTES]);
  va_list list;
  va_start(list, format);
  vsnprintf(text.get(), ERROR_BYTES, format, list);
  va_end(list);
  machine->error = text.get();
}

// ---- switching ---------------------------------------------------------------------------------
void switch_from(void** save, Lane* to) {
  current = to;
  machine->schedule->switches += 1;
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
  const void* bottom = to ? machine->stacks.at(to->stack) : machine->host_stack;
  __sanitizer_start_switch_fiber(&fake, bottom, to ? STACK_BYTES : machine->host_stack_bytes);
  switch_stack(save, to ? to->stack_pointer : machine->stack_pointer);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  switch_stack(save, to ? to->stack_pointer : machine->stack_pointer);
#endif
}

Lane* next_ready(u32 lane) {
  Warp& w = *machine->running;
  if (!w.ready || machine->error) return nullptr;
  u32 above = lane == 31 ? 0 : w.ready >> (lane + 1) << (lane + 1);
  u32 next = static_cast<u32>(__builtin_ctz(above ? above : w.ready));
  w.ready &= ~(1u << next);
  return w.lanes + next;
}

void park() {
  Lane* l = current;
  switch_from(&l->stack_pointer, next_ready(l->thread % 32));
}

[[noreturn]] void stop() {
  void* nowhere;
  switch_from(&nowhere, nullptr);
  abort();
}

// ---- time --------------------------------------------------------------------------------------
// What this thread has computed, in ns: a watchdog must not bark because the machine was busy.
static u64 thread_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<u64>(t.tv_sec) * 1000000000ull + static_cast<u64>(t.tv_nsec);
}
u64 read_clock() {
  if (machine->schedule->host_time) return thread_ns();
  return machine->now += ++machine->clock_reads % 16 == 0;  // it never stands still
}

void note_idle(Warp& w) {
  u64 turns = machine->schedule->turns;
  if (w.last_turn < turns - machine->idle_turns) w.idle = 0;
  machine->idle_turns += 1;
  w.idle += 1;
  w.last_turn = turns;
}

bool quiescent() {
  const Machine& m = *machine;
  if (m.idle_turns <= 8 * m.warps.size() || m.flying || m.buffered || m.host_stores ||
      m.schedule->host_time) {
    return false;
  }
  u64 progress = m.schedule->turns - m.idle_turns;  // the turn of the last
  return std::all_of(m.warps.begin(), m.warps.end(), [&](const Warp& w) {
    return !w.queued || (w.idle >= 8 && w.last_turn > progress);
  });
}

u64 pause_of(Warp& w) {
  const Mood& m = machine->mood;
  u64 ticks = 1 + draw() % m.turn;
  if (chance(m.nap_every)) ticks += draw() % m.nap;
  if (m.slow > 1) {
    u32 warp = w.lanes->thread / 32, warps = w.block->grid->threads / 32;
    bool slow = w.block->sm == machine->schedule->seed / 7 % machine->blocks.size() ||
                (warp + w.block->sm) % warps == machine->schedule->seed / 3 % warps;
    if (slow) ticks *= m.slow;
  }
  if (w.backoff) ticks += draw() % (1u << w.backoff);
  return ticks;
}

void queue_turn(Warp& w, u64 delay) {
  w.queued = true;
  push_event(delay, TURN, static_cast<u32>(&w - machine->warps.data()));
}

void make_ready(Lane* l) {
  Warp& w = *l->warp;
  l->waits_at = nullptr;
  w.ready |= 1u << l->thread % 32;
  if (&w != machine->running && !w.queued) queue_turn(w, pause_of(w));
}

// ---- what lanes tell the scheduler -------------------------------------------------------------
void advance() {
  Lane& l = self();
  l.warp->progress = true;
  l.anchor = nullptr;
  l.since_anchor = 0, l.anchor_span = 1;
}
void yield() {
  Lane& l = self();
  l.fuel = 256;
  l.warp->polled |= 1u << l.thread % 32;
  park();
}
// A place where the lane may lose its turn, once in so many times. Losses are counted down instead
// of drawn each time: the sum of the chances until the next is drawn.
void maybe_yield(u32 one_in) {
  constexpr i32 CERTAIN = 1 << 16;
  machine->patience -= CERTAIN / static_cast<i32>(one_in);
  if (machine->patience > 0) return;
  machine->patience = static_cast<i32>(draw() % (2 * CERTAIN));
  yield();
}

bool spins(const void* at, u64 value) {
  constexpr u32 LONGEST = 128;  // looks in a loop
  Lane& l = self();
  if (l.anchor == at && l.anchor_value == value) {
    l.since_anchor = 0;
    return true;
  }
  if (l.anchor == at || ++l.since_anchor >= l.anchor_span) {
    l.anchor = at, l.anchor_value = value;
    l.since_anchor = 0;
    l.anchor_span = std::min(2 * l.anchor_span, LONGEST);
    l.warp->progress = true;
  }
  return --l.fuel == 0;
}

void release(Rendezvous& r) {
  r.arrived = 0;
  for (Lane* l : r.waiting) {
    l->warp->at_barrier &= ~(1u << l->thread % 32);
    make_ready(l);
  }
  r.waiting.clear();
}
void meet(Rendezvous& r, u32 expected, const char* name, bool of_block) {
  advance();
  if (++r.arrived == expected) {
    release(r);
    maybe_yield(8);
    return;
  }
  Lane& l = self();
  r.waiting.push_back(&l);
  if (of_block) l.warp->at_barrier |= 1u << l.thread % 32;
  l.waits_at = name;
  park();
}

constexpr const char* COLLECTIVES[] = {"a warp barrier", "shuffle_xor", "shuffle_from",
                                       "warp_any or warp_all", "a matrix instruction"};

void meet_block(u32 id, u32 threads) {
  Lane& l = self();
  Warp& w = *l.warp;
  if (id >= 16 || threads == 0 || threads % 32 || threads > w.block->grid->threads) {
    EMULATOR_FAIL(
        "barrier %u of %u threads: expected an id below 16 and a multiple of 32, at most "
        "the block's %u",
        id, threads, w.block->grid->threads);
  }
  if (w.arrived) {
    EMULATOR_FAIL(
        "divergent barrier: of block %u's warp %u some lanes are in %s, one comes to "
        "barrier %u",
        w.block->index, l.thread / 32, COLLECTIVES[w.kind], id);
  }
  if (w.at_barrier && w.barrier != id) {
    EMULATOR_FAIL(
        "divergent barrier: of block %u's warp %u some lanes wait at barrier %u, one comes "
        "to barrier %u",
        w.block->index, l.thread / 32, w.barrier, id);
  }
  Rendezvous& r = w.block->barriers[id];
  if (r.arrived && r.expected != threads) {
    EMULATOR_FAIL("barrier %u is one of %u threads for some and of %u for others", id, r.expected,
                  threads);
  }
  r.expected = threads;
  w.barrier = id;
  meet(r, threads, id ? "named barrier" : "block barrier", true);
}

const Posts& meet_warp(Collective kind, const u32* mine, u32 words, void (*finish)(Posts&)) {
  Lane& l = self();
  Warp& w = *l.warp;
  u32 bit = 1u << l.thread % 32;
  if (w.arrived && w.kind != kind) {
    EMULATOR_FAIL(
        "divergent collective: of block %u's warp %u some lanes are in %s, one comes to %s",
        w.block->index, l.thread / 32, COLLECTIVES[w.kind], COLLECTIVES[kind]);
  }
  if (w.at_barrier) {
    EMULATOR_FAIL(
        "divergent barrier: of block %u's warp %u some lanes wait at barrier %u, one comes "
        "to %s",
        w.block->index, l.thread / 32, w.barrier, COLLECTIVES[kind]);
  }
  w.kind = kind;
  Posts& posts = w.posts[w.round & 1];
  for (u32 i = 0; i < words; ++i) posts.words[l.thread % 32][i] = mine[i];
  w.arrived |= bit;
  if (w.arrived == 0xffffffffu) {
    if (finish) finish(posts);
    w.arrived = 0;
    w.round += 1;
    w.ready |= ~bit;
    for (u32 i = 0; i < 32; ++i) w.lanes[i].waits_at = nullptr;
    return posts;
  }
  l.waits_at = COLLECTIVES[kind];
  park();
  return posts;
}

// ---- events ------------------------------------------------------------------------------------
void push_event(u64 delay, EventKind kind, u32 index) {
  machine->events.push_back({machine->now + delay, draw(), kind, index});
  std::push_heap(machine->events.begin(), machine->events.end());
}

}  // namespace emulator
