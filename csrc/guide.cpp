// Guided slots of an epoch: each draw waits for a guide, which says what may come.
//
// Not a callback of the decode thread, and not an epoch for each token. The reader of the answer
// learns of a token when it is drawn, and posts what may follow while the pass runs that feeds it.
// A late guide holds up no other slot: the slot's logits are kept, and it misses passes.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "executor.h"

namespace monolane {

// ---- Called from outside ----

void Executor::guide(int slot, Guide guide) {
  check_guide(slot, guide);
  // Released with all that it holds; the leader's exchange acquires it.
  Guide* before = guides_[slot].exchange(new Guide(std::move(guide)), std::memory_order_acq_rel);
  if (before != nullptr) {
    delete before;
    throw std::logic_error("guide: expected one for each draw, got a second one");
  }
  call_leader();
}

void Executor::drop_guides() {
  for (std::atomic<Guide*>& guide : guides_) delete guide.exchange(nullptr);
}

void Executor::check_guide(int slot, const Guide& guide) const {
  const auto same = [slot](const Running& running) {
    return running.advance.slot == slot && running.advance.guided;
  };
  // Reads nothing that the leader writes. The epoch may be over by now, which its reader alone
  // finds out: then nobody takes the guide.
  if (std::none_of(running_.begin(), running_.end(), same)) {
    throw std::logic_error("guide: the epoch has no such guided slot");
  }
  for (const int32_t token : guide.forced) check_token("forced", token);
  const int32_t vocab = plan_.header.vocab, words = mask_words(vocab);
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

void Executor::park(Running& running, const float* logits) {
  running.logits.assign(logits, logits + plan_.header.vocab);
  running.parked = true;
}

// Goes on with those whose guide has come; returns whether there is one left without.
bool Executor::settle_parked() {
  bool left = false;
  for (Running& running : running_) {
    if (!running.parked) continue;
    running.parked = !take_guide(running);
    left |= running.parked;
    if (!running.parked) settle(running, running.logits.data());
  }
  return left;
}

bool Executor::take_guide(Running& running) {
  if (!running.guide) {
    running.guide.reset(guides_[running.advance.slot].exchange(nullptr, std::memory_order_acq_rel));
  }
  return running.guide != nullptr;
}

// Forced tokens leave at once, and go in like a prompt: one wide pass, whose last row is drawn
// from.
void Executor::force(Running& running) {
  running.advance.tokens = std::move(running.guide->forced);
  running.guide->forced.clear();
  running.fed = 0;
  for (const int32_t token : running.advance.tokens) {
    emit(running, token, nullptr);
    if (running.done) return;
  }
  running.done = running.guide->mask.empty();
}

}  // namespace monolane
