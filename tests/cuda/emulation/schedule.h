// Who runs when. A warp gets a turn, in which each of its lanes runs until it blocks, ends or polls
// in vain; then it sleeps for a random span. Time is counted in ticks and jumps from event to
// event, so waiting costs nothing. What is written in here depends on the seed and on equality of
// addresses, never on an address itself: a seed replays in another process.
#pragma once

#include "machine.h"

namespace emulator {

[[gnu::format(printf, 1, 2)]] void set_error(const char* format, ...);

// ---- switching ---------------------------------------------------------------------------------
void switch_from(void** save, Lane* to);
// The next lane of the running warp after `lane`, in a ring; null: the turn is over.
Lane* next_ready(u32 lane);
// The current lane stops here, in whatever list it has put itself, until somebody makes it ready.
void park();
[[noreturn]] void stop();
#define EMULATOR_FAIL(...)            \
  do {                                \
    emulator::set_error(__VA_ARGS__); \
    emulator::stop();                 \
  } while (0)

// ---- time --------------------------------------------------------------------------------------
u64 read_clock();
// Notes a turn in which a warp polled in vain.
void note_idle(Warp& w);
// Nothing can change any more but the clock: everybody who can run has polled in vain since anybody
// made progress, who naps for long too. Then sleeps grow, and watchdogs bark soon.
bool quiescent();
u64 pause_of(Warp& w);
void queue_turn(Warp& w, u64 delay);
void make_ready(Lane* l);

// ---- what lanes tell the scheduler -------------------------------------------------------------
// The lane changed something that others may see.
void advance();
// Lets others run.
void yield();
// A place where the lane may lose its turn, once in so many times.
void maybe_yield(u32 one_in);

// Notes a look at memory; true: this is a loop that has come round and seen what it saw before. The
// anchor moves away in growing steps until the loop is shorter than a step.
bool spins(const void* at, u64 value);

// A load that a lane may spin on. Where it does, others run before it looks again, and what it
// returns is now and then the older value.
template <typename Get>
inline u64 observe(const void* at, Get get) {
  maybe_yield(64);
  u64 value = get();
  if (!spins(at, value)) return value;
  yield();
  u64 fresh = get();
  if (chance(8)) return value;
  spins(at, fresh);
  return fresh;
}

// ---- meetings ----------------------------------------------------------------------------------
void release(Rendezvous& r);
void meet(Rendezvous& r, u32 expected, const char* name, bool of_block = false);

enum Collective : u32 { BARRIER, SHUFFLE_XOR, SHUFFLE_FROM, VOTE, MATRIX };

// Lanes of one warp at two different barriers, or some at one and some in a collective, hang or
// worse.
void meet_block(u32 id, u32 threads);
// All lanes of the warp post some words; the last one finishes the collective; all get the posts.
const Posts& meet_warp(Collective kind, const u32* mine, u32 words,
                       void (*finish)(Posts&) = nullptr);

}  // namespace emulator
