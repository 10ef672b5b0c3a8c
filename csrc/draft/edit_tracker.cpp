#include "draft/edit_tracker.h"

#include <algorithm>

namespace monolane {

void EditTracker::clear() {
  state_ = State::kNone;
  to_ = 0;
  kept_.clear();  // they are places in what was forgotten
}

bool EditTracker::equal(uint32_t one, uint32_t other, uint32_t count) const {
  for (uint32_t i = 0; i < count; ++i) {
    ++steps_;
    if (!index_.has(one + i) || !index_.has(other + i)) return false;
    if (index_.token(one + i) != index_.token(other + i)) return false;
  }
  return true;
}

void EditTracker::before(int32_t token) {
  if (state_ != State::kCopy) return;
  if (index_.has(place_) && index_.token(place_) == token) {
    for (Replacement& r : kept_) {
      if (equal(r.from, place_, r.from_count)) r.rate.count(false);
    }
    ++place_, ++run_;
    if (run_ == kSure && to_ > 0) keep_replacement();
    return;
  }
  if (run_ >= kAnchor) {
    from_ = place_, to_ = index_.end();
    state_ = State::kEdit;
  } else {
    state_ = to_ > 0 ? State::kEdit : State::kNone;  // the edit was not over yet
  }
}

void EditTracker::after(const SuffixMatch& longest) {
  if (state_ == State::kEdit) {
    const SuffixMatch found = resume();
    if (found.count >= kResume) {
      pending_ = {from_, found.at - found.count - from_, to_, index_.end() - found.count - to_, {}};
      place_ = found.at, run_ = found.count;
      state_ = State::kCopy;
    } else if (index_.end() - to_ > kLongest) {
      state_ = State::kNone, to_ = 0;
    }
  }
  const bool stronger = state_ != State::kCopy || (longest.count > run_ && longest.at != place_);
  if (longest.count >= kAnchor && stronger) {
    state_ = State::kCopy, to_ = 0;
    place_ = longest.at, run_ = longest.count;
  }
}

// The place close to the beginning of the edit that follows most of the answer's last tokens, none
// of them from before the edit; the nearest of equal ones.
SuffixMatch EditTracker::resume() const {
  SuffixMatch best{0, 0};
  const uint32_t since = index_.end() - to_;
  for (uint32_t at = from_ + 1; at <= from_ + kLongest && index_.has(at); ++at) {
    ++steps_;
    if (index_.token(at - 1) != index_.token(index_.end() - 1)) continue;
    const uint32_t count = std::min({index_.match(at), at - from_, since});
    if (count > best.count) best = {at, count};
  }
  return best;
}

void EditTracker::keep_replacement() {
  to_ = 0;
  if (pending_.from_count == 0 || pending_.to_count == 0) return;
  for (Replacement& r : kept_) {
    const bool sizes = r.from_count == pending_.from_count && r.to_count == pending_.to_count;
    if (sizes && equal(r.from, pending_.from, r.from_count) &&
        equal(r.to, pending_.to, r.to_count)) {
      r.rate.count(true);
      r.from = pending_.from, r.to = pending_.to;  // the ring forgets these later
      return;
    }
  }
  if (kept_.size() == kKept) kept_.erase(kept_.begin());
  pending_.rate = {1.0f, 1.5f};
  kept_.push_back(pending_);
}

SuffixMatch EditTracker::next() const {
  if (state_ == State::kCopy) return {place_, run_};
  if (state_ == State::kNone) return {0, 0};
  const SuffixMatch found = resume();
  if (found.count > 0) return found;
  return {from_ + (index_.end() - to_), 0};  // as many tokens for as many
}

const Replacement* EditTracker::at(uint32_t place) const {
  const Replacement* best = nullptr;
  for (const Replacement& r : kept_) {
    if (r.rate.chance() <= (best ? best->rate.chance() : 0.5f)) continue;
    if (equal(r.from, place, r.from_count)) best = &r;
  }
  return best;
}

const Replacement* EditTracker::within(uint32_t& done) const {
  if (state_ != State::kEdit) return nullptr;
  done = index_.end() - to_;
  const Replacement* best = nullptr;
  for (const Replacement& r : kept_) {
    if (done > r.to_count || (best && r.rate.chance() <= best->rate.chance())) continue;
    if (equal(r.from, from_, r.from_count) && equal(r.to, to_, done)) best = &r;
  }
  return best;
}

}  // namespace monolane
