// Slots that join an epoch while it runs, and leave it: continuous batching.
//
// Not an epoch for each set of slots: ending one takes a pass, and handing all slots over anew as
// long again, while nobody draws. A caller makes what it can of a slot's beginning, and the leader
// takes it in between two passes. Who joins and who closes the epoch exclude each other, so nobody
// waits in one that is over.
#include <limits>
#include <stdexcept>
#include <utility>

#include "run/pass_scheduler.h"

namespace monolane {

// ---- Called from outside ----

bool PassScheduler::join(std::vector<Advance> advances) {
  check(advances);
  for (const Advance& advance : advances) {
    if (!is_free(advance.slot)) throw std::logic_error("join: expected slots that are free");
  }
  std::vector<Running> made;
  made.reserve(advances.size());
  for (Advance& advance : advances) {
    forget_posts(advance);
    made.push_back(make_running(std::move(advance)));
  }
  {
    const std::scoped_lock lock(joining_);
    if (!open_) return false;
    for (Running& running : made) {
      busy_[running.advance.slot] = true;
      joined_.push_back(std::move(running));
    }
  }
  call_leader();
  return true;
}

void PassScheduler::leave(int slot) {
  leaving_[slot].store(true, std::memory_order_release);
  call_leader();
}

void PassScheduler::free_slots() {
  const std::scoped_lock lock(joining_);
  open_ = false;
  joined_.clear();
  std::ranges::fill(busy_, false);
}

// ---- Called by the leader, between two passes ----

void PassScheduler::admit_joined() {
  const std::scoped_lock lock(joining_);
  if (joined_.empty()) return;
  std::erase_if(running_, [](const Running& running) { return running.done; });
  for (Running& running : joined_) admit(std::move(running));
  joined_.clear();
}

// Ends what was asked to leave: the slot is its reader's, once told.
void PassScheduler::end_leaving() {
  for (Running& running : running_) {
    const int32_t slot = running.advance.slot;
    if (running.done || !leaving_[slot].load(std::memory_order_acquire)) continue;
    // It gives its last token back, as at the end of an epoch.
    if (running.parked) f_.sequences.set_length(slot, f_.sequences.length(slot) - 1);
    running.parked = false;
    running.done = true;
    TokenEvent event{};
    event.slot = slot;
    event.token = kGone;
    event.logprob = std::numeric_limits<float>::quiet_NaN();
    event.time_ns = now_ns();
    send_off(running, event);
  }
}

// Ends the epoch for those that would join it, unless some just have.
bool PassScheduler::close_unless_joined() {
  const std::scoped_lock lock(joining_);
  if (!joined_.empty()) return false;
  open_ = false;
  return true;
}

// ---- By both ----

// Forgets what was posted for a slot in an earlier epoch, or for its last request in this one.
void PassScheduler::forget_posts(const Advance& advance) {
  delete guides_[advance.slot].exchange(nullptr, std::memory_order_acq_rel);
  leaving_[advance.slot].store(false, std::memory_order_relaxed);
  guided_[advance.slot].store(advance.guided, std::memory_order_relaxed);
}

}  // namespace monolane
