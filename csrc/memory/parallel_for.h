// A loop of one worker, the leader, in which the others help while they would wait for it: each
// takes the next slice that nobody has yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "memory/progress.h"

namespace monolane {

class ParallelFor {
 public:
  // At first nobody helps. Then so many threads do: `call` has each call `help` once.
  void enlist(int32_t helpers, std::function<void()> call) {
    helpers_ = helpers;
    call_ = std::move(call);
  }

  // By the leader, like all below. Whether helpers are called: not if they may be asleep, since
  // what they could do takes less time than waking them.
  void gather() { gathered_ = helpers_ > 0; }
  void dismiss() { gathered_ = false; }

  // Calls slice(i) for each i < count, in any order; returns when all are done, and no helper looks
  // at anything here.
  template <class Slice>
  void each(int32_t count, const Slice& slice) {
    if (!gathered_ || count < 2) {
      for (int32_t i = 0; i < count; ++i) slice(i);
      return;
    }
    slice_ = std::cref(slice);  // no allocation
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    away_.store(helpers_, std::memory_order_relaxed);
    ++round_;
    call_();  // publishes what is written here
    take();
    back_.await(round_);
  }

  // By each helper, when it is called.
  void help() {
    take();
    // The last one publishes what all of them wrote.
    if (away_.fetch_sub(1, std::memory_order_acq_rel) == 1) back_.publish(round_);
  }

 private:
  void take() {
    for (int32_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) slice_(i);
  }

  int32_t helpers_ = 0;
  bool gathered_ = false;
  std::function<void()> call_;
  std::function<void(int32_t)> slice_;
  int32_t count_ = 0;
  uint32_t round_ = 0;
  std::atomic<int32_t> next_{0};
  std::atomic<int32_t> away_{0};  // helpers that have not left
  Progress back_;
};

}  // namespace monolane
