// Tokens on their way out of an epoch: one thread writes, one reads, neither locks.
//
// The decode thread must never wait for Python. The ring holds as many events as an epoch can
// draw at most before its reader comes (capacity is a bound on tokens in flight, not on tokens),
// and when a reader is that far behind, the writer waits for it: the only place where it may.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "abi/epoch_abi.h"
#include "memory/progress.h"

namespace monolane {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class TokenRing {
 public:
  explicit TokenRing(uint32_t capacity) : events_(capacity) {}

  // Called by the decode thread. Waits while the ring is full.
  void push(const TokenEvent& event) {
    const uint32_t capacity = static_cast<uint32_t>(events_.size());
    read_.await(pushed_ + 1 - capacity);  // the slot's previous event has been taken
    events_[pushed_ % capacity] = event;
    written_.publish(++pushed_);
  }

  // Called by the decode thread when no more tokens come of an epoch: the end takes a place as a
  // token does, so a reader that waits for one wakes.
  void push_end() {
    TokenEvent end{};
    end.slot = kEnd;
    push(end);
  }

  // Called by the reader, before an epoch begins.
  void begin() { ended_ = false; }

  // Called by the reader: waits for a token or the end, for at most so long.
  void await_token(int64_t nanoseconds) { written_.await_for(taken_ + 1, nanoseconds); }

  // Called by the reader: takes what is there, without waiting.
  void take(std::vector<TokenEvent>& out) {
    const uint32_t capacity = static_cast<uint32_t>(events_.size());
    while (written_.reached(taken_ + 1)) {
      const TokenEvent& event = events_[taken_ % capacity];
      event.slot == kEnd ? static_cast<void>(ended_ = true) : out.push_back(event);
      read_.publish(++taken_);
    }
  }

  // For the reader: whether the end of the epoch has been taken.
  bool ended() const { return ended_; }

 private:
  static constexpr int32_t kEnd = -1;  // a slot that there is not

  std::vector<TokenEvent> events_;
  Progress written_;     // events published by the writer
  Progress read_;        // events taken by the reader
  uint32_t pushed_ = 0;  // the writer's own count
  uint32_t taken_ = 0;   // the reader's own count
  bool ended_ = false;   // the reader's own
};

}  // namespace monolane
