// Guided slots of an epoch: each draw waits for a guide, which says what may come.
//
// Not a callback of the decode thread, and not an epoch for each token. The reader of the answer
// learns of a token when it is drawn, and posts what may follow while the pass runs that feeds it.
// A late guide holds up no other slot: the slot's logits are kept, and it misses passes.
//
// Drafted tokens have rows of their own, but each waits for its guide, too, which follows from the
// token before it. So a drafted token saves a pass, and costs the way to the reader and back. Masks
// posted for drafts ahead of time would save that as well, but every grammar would have to step
// ahead and back again for tokens that are not drawn.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "run/pass_scheduler.h"

namespace monolane {

// ---- Called from outside ----

void PassScheduler::guide(int slot, Guide guide) {
  check_guide(slot, guide);
  // Released with all that it holds; the leader's exchange acquires it.
  Guide* before = guides_[slot].exchange(new Guide(std::move(guide)), std::memory_order_acq_rel);
  if (before != nullptr) {
    delete before;
    throw std::logic_error("guide: expected one for each draw, got a second one");
  }
  call_leader();
}

void PassScheduler::drop_guides() {
  for (std::atomic<Guide*>& guide : guides_) delete guide.exchange(nullptr);
}

void PassScheduler::check_guide(int slot, const Guide& guide) const {
  f_.sequences.length(slot);  // throws where there is no such slot
  // Reads nothing that the leader writes. The epoch may be over by now, which its reader alone
  // finds out: then nobody takes the guide.
  if (!guided_[slot].load(std::memory_order_relaxed)) {
    throw std::logic_error("guide: the epoch has no such guided slot");
  }
  for (const int32_t token : guide.forced) check_token("forced", token);
  const int32_t vocab = f_.plan.header.vocab, words = mask_words(vocab);
  if (guide.mask.empty() && !guide.forced.empty()) return;
  if (static_cast<int32_t>(guide.mask.size()) != words) {
    throw std::invalid_argument("mask: expected " + std::to_string(words) + " words, got " +
                                std::to_string(guide.mask.size()));
  }
  for (int32_t i = 0; i < words; ++i) {
    const int32_t beyond =
        std::max(0, (i + 1) * 32 - vocab);  // bits of the last that are no tokens
    if (guide.mask[i] << beyond) return;
  }
  throw std::invalid_argument("mask: expected one that allows a token");
}

// ---- Called by the leader ----

// Keeps the logits of a slot from a row on, until its guide comes.
void PassScheduler::park(Running& running, const float* logits) {
  running.parked = true;
  running.parked_ns = running.right > 0 ? now_ns() : 0;  // else a pass has run meanwhile
  if (running.row_logits == nullptr) {
    const size_t rows = running.draft.used - running.right + 1;
    running.logits.assign(logits, logits + rows * f_.plan.header.vocab);
    logits = running.logits.data();
  }
  running.row_logits = logits;
}

// Goes on with those whose guide has come; returns whether there is one left without.
bool PassScheduler::settle_parked() {
  bool left = false;
  for (Running& running : running_) {
    if (running.parked && take_guide(running)) {
      if (running.parked_ns > 0) speculation_.add_wait(now_ns() - running.parked_ns);
      running.parked = false;
      settle(running, running.row_logits);
    }
    left |= running.parked;
  }
  return left;
}

bool PassScheduler::take_guide(Running& running) {
  if (!running.guide) {
    running.guide.reset(guides_[running.advance.slot].exchange(nullptr, std::memory_order_acq_rel));
  }
  return running.guide != nullptr;
}

// Forced tokens leave at once. What was not drafted of them goes in like a prompt: one wide pass,
// whose last row is drawn from. Returns whether all were drafted, and `logits` is that row.
bool PassScheduler::force(Running& running, const float*& logits) {
  const std::vector<int32_t> forced = std::move(running.guide->forced);
  running.guide->forced.clear();
  const bool ends = running.guide->mask.empty();
  size_t fed = 0;  // of the first ones
  for (size_t i = 0; i < forced.size(); ++i) {
    const size_t used = i == 0 && running.right == 0 ? running.draft.used : 0;
    // What ends an answer is never fed, so it must be known by the time that it leaves.
    if (ends && i + 1 == forced.size()) running.advance.budget = running.drawn + 1;
    if (fed == i) {
      fed += accept(running, forced[i], nullptr, static_cast<int32_t>(used));
    } else {
      emit(running, forced[i], nullptr);
      if (running.advance.drafts != 0) speculation_.push(running.advance.slot, forced[i]);
    }
    if (running.done) return false;
  }
  logits += fed * f_.plan.header.vocab;
  if (fed == forced.size()) return true;
  running.advance.tokens.assign(forced.begin() + fed, forced.end());
  running.fed = 0;
  return false;
}

}  // namespace monolane
