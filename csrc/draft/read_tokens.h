// What of each slot's sequence a drafter has read that reads tokens with the model's states, and
// what it still has to read of those that are asked for.
//
// It reads a token with the states of the one before, of which the newest are kept
// (kept_states.h): so behind a long prompt, or a kept prefix, it begins there. Places count from
// the first token that it has read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "draft/joint_drafter.h"
#include "draft/kept_states.h"
#include "draft/pass_cost.h"

namespace monolane {

class ReadTokens {
 public:
  // `columns`: of what is kept of a token.
  ReadTokens(int slots, int64_t columns, int64_t context)
      : context_(context), states_(slots, columns), read_(slots) {}

  void see(int slot, int64_t position, const float* state) { states_.keep(slot, position, state); }
  void forget(int slot) {
    states_.forget(slot);
    read_[slot].first = 0;  // tokens may be the same, behind others
  }

  // Expected nanoseconds of reading what has not been read.
  double cost(const DraftAsk& ask) const {
    size_t held = 0;
    const std::optional<size_t> first = find(ask, held);
    if (!first) return 0;
    const size_t unread = ask.tokens->size() - *first - held;
    return unread <= kBeside ? 0 : static_cast<double>(unread) * cost_.of(1);
  }

  // ---- Of a draft, by the leader ----

  void begin() { unread_.clear(), all_ = most_ = 0; }

  // Has what is left of a sequence be read, behind those before; returns whether it can be.
  bool take(const DraftAsk& ask) {
    size_t held = 0;
    const std::optional<size_t> first = find(ask, held);
    if (!first || ask.tokens->size() - *first > static_cast<size_t>(context_)) return false;
    Read& mine = read_[ask.advance->slot];
    mine.first = *first;
    mine.held.resize(held);
    const size_t count = ask.tokens->size() - *first - held;
    all_ += count;
    most_ = std::max(most_, count);
    unread_.push_back({&ask, *first + held});
    return true;
  }

  // Reads up to `most` tokens: adds the states of each to `states`, and calls add(of which sequence
  // that was taken, slot, place, token, whether it is the last).
  template <typename Add>
  void read(size_t most, std::vector<float>& states, Add add) {
    for (size_t i = 0; i < unread_.size(); ++i) {
      auto& [ask, next] = unread_[i];
      const int slot = ask->advance->slot;
      for (; next < ask->tokens->size() && most > 0; ++next, --most) {
        states_.append(slot, static_cast<int64_t>(next) - 1, 1, states);
        const int32_t token = (*ask->tokens)[next];
        add(i, slot, this->add(slot, token), token, next + 1 == ask->tokens->size());
      }
    }
  }

  // Whether some are left.
  bool left() const {
    return std::any_of(unread_.begin(), unread_.end(),
                       [](const Unread& x) { return x.next < x.ask->tokens->size(); });
  }

  // A slot has read a token more; returns its place.
  int64_t add(int slot, int32_t token) {
    read_[slot].held.push_back(token);
    return static_cast<int64_t>(read_[slot].held.size()) - 1;
  }

  // How many a slot has read.
  int64_t held(int slot) const { return static_cast<int64_t>(read_[slot].held.size()); }

  // The draft is over, and took so long. Returns whether that is what drafting costs: little was
  // read beside.
  bool end(const std::vector<DraftAsk>& asks, int64_t nanoseconds) {
    for (const DraftAsk& ask : asks) {
      // What it drafted it read by states of its own: it reads that again by the model's.
      Read& mine = read_[ask.advance->slot];
      if (mine.first == 0 || mine.first > ask.tokens->size()) continue;
      mine.held.resize(std::min(mine.held.size(), ask.tokens->size() - mine.first));
    }
    if (most_ <= kBeside) return true;
    cost_.add(1, nanoseconds / static_cast<int64_t>(all_));
    return false;
  }

 private:
  static constexpr size_t kBeside = 32;  // tokens that, beside drafting, cost hardly more than none

  // Tokens of a slot's sequence, from `first` on; 0: none yet.
  struct Read {
    size_t first = 0;
    std::vector<int32_t> held = {};
  };
  struct Unread {
    const DraftAsk* ask;
    size_t next;  // token
  };

  // The token of a sequence from which on a slot reads it, and how many from there it holds;
  // nothing where the states of the last token but one were not kept.
  std::optional<size_t> find(const DraftAsk& ask, size_t& held) const {
    const int slot = ask.advance->slot;
    const std::vector<int32_t>& tokens = *ask.tokens;
    const size_t begin = static_cast<size_t>(states_.begin(slot)), count = tokens.size();
    const size_t end = static_cast<size_t>(states_.end(slot));
    if (end + 1 < count || begin + 1 >= count) return std::nullopt;
    const Read& mine = read_[slot];
    if (mine.first > 0 && mine.first < count) {
      const size_t most = std::min(mine.held.size(), count - mine.first - 1);
      const auto differ =
          std::mismatch(mine.held.begin(), mine.held.begin() + most, tokens.begin() + mine.first);
      held = static_cast<size_t>(differ.first - mine.held.begin());
      if (mine.first + held > begin) return mine.first;
    }
    held = 0;
    return begin + 1;
  }

  const int64_t context_;
  KeptStates states_;
  std::vector<Read> read_;
  std::vector<Unread> unread_;
  size_t all_ = 0, most_ = 0;  // tokens that this draft reads first, and the most of a sequence
  PassCost cost_{1};           // of a token among many
};

}  // namespace monolane
