// The steps of a draft that all workers take together: where they meet, which sequences draft on,
// and what a step takes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "draft/joint_drafter.h"
#include "draft/pass_cost.h"
#include "memory/progress.h"

namespace monolane {

class DraftSteps {
 public:
  DraftSteps(int workers, int slots) : met_(workers), cost_(slots) {}

  // Waits for all workers, and sees what they wrote.
  void meet(int worker) {
    const uint32_t count = met_[worker].count() + 1;
    met_[worker].publish(count);
    for (Progress& other : met_) other.await(count);
  }

  // ---- By the leader ----

  // A draft begins; what is given outlives it.
  void begin(const JointDrafter::GoOn& go_on, const std::atomic<bool>& stop) {
    count_ = 0;
    go_on_ = &go_on;
    stop_ = &stop;
  }

  void count() { ++count_; }

  // Whether a sequence drafts on behind a token that was drawn for it; `drafted` before that one.
  bool go_on(const DraftAsk& ask, int32_t token, float stated, uint32_t& drafted) const {
    const std::vector<int32_t>& stops = ask.advance->stop_ids;
    const bool ends = std::find(stops.begin(), stops.end(), token) != stops.end();
    const bool more = (*go_on_)(ask, token, stated);
    return more && !ends && ++drafted != ask.most && !stopped();
  }

  bool stopped() const { return stop_->load(std::memory_order_relaxed); }

  // The draft of so many sequences took so long.
  void end(int sequences, int64_t nanoseconds) {
    cost_.add(sequences, nanoseconds / std::max<int64_t>(1, count_));
  }

  // Expected nanoseconds of a step.
  double cost(int sequences) const { return cost_.of(sequences); }

 private:
  std::vector<Progress> met_;  // [workers] how often each has come to a meeting
  int64_t count_ = 0;          // steps of this draft
  const JointDrafter::GoOn* go_on_ = nullptr;
  const std::atomic<bool>* stop_ = nullptr;
  PassCost cost_;
};

}  // namespace monolane
