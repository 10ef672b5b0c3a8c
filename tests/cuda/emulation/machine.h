// What an emulated device consists of: lanes in warps in blocks (one block per SM), the events that
// will happen, and the random numbers that everything is drawn from.
#pragma once

#include <memory>
#include <vector>

#include "fiber.h"

namespace emulator {

struct Grid {  // one kernel of a launch; ctypes mirrors it
  void (*kernel)(const void*);
  const void* params;
  u32 blocks, threads, shared, cluster;
  // Where grids are devices that are joined by links: the memory of this one, else null.
  u8 *memory, *memory_end;
};
struct HostStore {  // a word that the host writes at a moment of the launch
  u64 when;
  u32* at;
  u32 value;
};
struct Schedule {  // ctypes mirrors it
  u64 seed;
  u32 sms;        // blocks that are resident together
  u32 host_time;  // 1: clocks are the thread's; what kernels wait for may come from other threads
  u32 mood;       // 0: drawn from the seed; else 1 + an index of MOODS
  u32 store_count;
  const HostStore* stores;
  u32 skew;        // ticks by which a device starts later than another, at most
  u32 dies;        // 1 + the number of a device that stops for ever; 0: none
  u64 dies_at;     // the tick
  float noise;     // a number errs by so much of itself before it is rounded to 16 bits,
  u32 noise_seed;  // up or down as its own bits and this have it
  u64 ticks, turns, switches;  // out: what it took
};

struct Copy {  // `count` pieces of `bytes`, `stride` apart
  u8* to;
  const u8* from;
  u32 bytes, stride, count;
  u64* barrier;  // or null
  bool arrives;  // the completion is an arrival on the barrier, not bytes
  struct Block* block;
};

struct Store {  // a word on its way from an SM to the memory that all SMs share
  u8* at;
  u64 value;
  u32 bytes;  // 4 or 8, at an alignment of as many
};

constexpr u32 NEAR = 1024;
struct StoreBuffer {
  std::vector<Store> pending;  // oldest first; no two overlap
  u16 near[NEAR] = {};         // how many of them by address: a quick no
  bool draining = false;       // its event is queued
};

struct Lane;

struct Rendezvous {  // a reusable barrier of lanes
  u32 arrived = 0, expected = 0;
  std::vector<Lane*> waiting;
};

// What collectives of a warp leave for its lanes; two take turns, because a lane can be at most one
// collective ahead of the slowest.
struct Posts {
  u32 words[32][10];
  float product[32][4];
};

struct Warp {
  struct Block* block = nullptr;
  Lane* lanes = nullptr;  // [32]
  u32 ready = 0;          // masks of lanes: to run in this turn,
  u32 polled = 0;         // to run in the next,
  u32 arrived = 0;        // waiting in a collective,
  u32 at_barrier = 0;     // waiting at block barrier `barrier`
  u32 barrier = 0;
  u32 kind = 0;  // of the collective
  u32 round = 0;
  bool queued = false;    // its next turn is an event
  bool dead = false;      // with its device
  bool progress = false;  // some lane did more than look at what it had seen before
  u32 backoff = 0;
  u32 idle = 0;       // turns without progress since anybody made some,
  u64 last_turn = 0;  // the last of them, counted among all turns
  Posts posts[2];
};

struct Block {
  const Grid* grid = nullptr;
  u32 index = 0;  // in its grid
  u32 sm = 0;     // in the wave
  u8* shared = nullptr;
  u32 live = 0;  // lanes
  u32 flying = 0;
  struct Cluster* cluster = nullptr;
  Rendezvous barriers[16];
  StoreBuffer stores;
  StoreBuffer links;  // stores on their way to other devices
};

struct Cluster {
  u32 live = 0;
  Rendezvous meeting;
};

struct Pending {  // cp.async or bulk stores of one lane, oldest group first
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};

struct Lane {
  void* stack_pointer = nullptr;
  Warp* warp = nullptr;
  u32 thread = 0;
  u32 stack = 0;
  bool done = false;
  const char* waits_at = nullptr;
  u32 fuel = 0;  // looks until it must let others run
  // What it saw some looks ago: where it sees that again, it is in a loop.
  const void* anchor = nullptr;
  u64 anchor_value = 0;
  u32 since_anchor = 0, anchor_span = 1;
  std::unique_ptr<Pending> pending;
};

// How a launch misbehaves; the seed chooses.
struct Mood {
  u32 turn;       // ticks between a warp's turns, at most,
  u32 nap_every;  // but once in so many turns
  u32 nap;        // up to so many
  u32 landing;    // ticks that a copy takes, at most
  u32 drain;      // ticks between drains of a store buffer, at most,
  u32 link;       // and of what goes to other devices
  u32 slow;       // factor by which one block and one warp of every block are slower
  u32 backoff;    // who polls in vain sleeps up to 2^so many ticks
};
constexpr Mood MOODS[] = {
    {4, 1 << 30, 1, 60, 20, 100, 1, 5},      // brisk
    {6, 48, 600, 120, 60, 400, 1, 7},        // naps
    {4, 2000, 20000, 60, 20, 3000, 1, 9},    // long naps
    {4, 1 << 30, 1, 3000, 600, 1000, 1, 9},  // slow memory
    {4, 200, 500, 300, 100, 20, 40, 9},      // slow block
    {40, 1 << 30, 1, 4, 2, 2, 1, 7},         // fast memory
};
constexpr u32 MOOD_COUNT = sizeof(MOODS) / sizeof(MOODS[0]);

enum EventKind : u32 { TURN = 0, LANDING = 1, DRAIN = 2, HOST = 3, LINK = 4, DEATH = 5 };
struct Event {
  u64 when;
  u32 order;  // among those of one tick
  EventKind kind;
  u32 index;
  bool operator<(const Event& other) const {  // std's heaps have the largest in front
    return when != other.when ? when > other.when : order > other.order;
  }
};

struct Machine {
  Schedule* schedule = nullptr;
  const Grid* grids = nullptr;
  u32 grid_count = 0;
  // Of each device's memory, by words of 8 bytes: whether another device has stored there.
  std::vector<std::vector<bool>> linked;
  Mood mood = MOODS[0];
  u64 random = 0;
  u64 now = 0;  // ticks
  u64 idle_turns = 0;
  bool stretched = false;  // some sleep for longer than the mood allows
  i32 patience = 0;        // with the running lane: see maybe_yield
  u32 clock_reads = 0;
  u32 live = 0;  // lanes
  u32 flying = 0, buffered = 0, host_stores = 0;
  void* stack_pointer = nullptr;  // of the scheduler
  Warp* running = nullptr;
  std::vector<Event> events;
  std::vector<Copy> flights;
  std::vector<u32> free_flights;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  std::vector<Block> blocks;
  std::vector<Cluster> clusters;
  Rendezvous everybody;
  Stacks stacks;
  char* error = nullptr;  // points at the thread's text once something is wrong
#ifdef __SANITIZE_ADDRESS__
  const void* host_stack = nullptr;  // as the first lane learns it
  size_t host_stack_bytes = 0;
#endif
};

// The thread's, of context.cpp.
extern __thread Machine* machine __asm__("monolane_emulator_machine")
    __attribute__((tls_model("initial-exec"), visibility("default")));
extern __thread Lane* current __asm__("monolane_emulator_lane")
    __attribute__((tls_model("initial-exec"), visibility("default")));

inline Lane& self() { return *current; }
inline Block& own_block() { return *current->warp->block; }

inline u32 draw() {  // xorshift64*
  u64& r = machine->random;
  r ^= r >> 12, r ^= r << 25, r ^= r >> 27;
  return static_cast<u32>(r * 0x2545f4914f6cdd1dull >> 32);
}
inline bool chance(u32 one_in) { return draw() % one_in == 0; }

void push_event(u64 delay, EventKind kind, u32 index);

}  // namespace emulator
