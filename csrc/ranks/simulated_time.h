// Phases that take a stated time: so that more ranks than this machine has cores, or ranks of
// another machine, can be watched while they exchange. For measurements only.
//
// Why not a simulation alone: waits, links, rings of outputs, the pass and its token are the real
// ones, between real processes; only a product's time is that of the model of a device
// (monolane.sim, whose `_product` this follows).
#pragma once

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace monolane {

// Of one worker in one phase, ns; see monolane.sim.Timetable.
struct PhaseTime {
  int64_t chain;   // from the end of its waits to the first product
  int64_t stream;  // in which its weights arrive
  int64_t most;    // the rest of what it does, if all weights are there already
  int64_t beside;  // reading what comes past the weights' ring: keys and values
};
static_assert(sizeof(PhaseTime) == 32);

struct Timetable {
  int64_t ring = 0;      // ns of streaming that a worker has ready at most before a phase wants it
  int32_t computes = 1;  // 1: phases compute, then wait until their time is over; 0: they wait
};

// What of a worker's weights has arrived.
class SimulatedStream {
 public:
  // Returns when a phase ends whose worker came at `arrived` and was done waiting at `begun`.
  int64_t end(const PhaseTime& time, int64_t ring, int64_t arrived, int64_t begun) {
    const int64_t multiplied = begun + time.chain;
    ready_ = std::min(ring, ready_ + multiplied - arrived);
    const int64_t lasts = std::max({time.stream - ready_, time.most, int64_t{0}});
    ready_ = std::clamp<int64_t>(ready_ + lasts - time.stream, 0, ring);
    return multiplied + lasts + time.beside;
  }

 private:
  int64_t ready_ = 0;  // ns of streaming
};

// A sleeper is woken 50 us late by default, which is meant to save power.
inline void wake_in_time() { prctl(PR_SET_TIMERSLACK, 1UL); }

// By the clock of now_ns. An absolute time: being woken late does not add up over waits.
inline void sleep_until(int64_t ns) {
  const timespec until{ns / 1'000'000'000, ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace monolane
