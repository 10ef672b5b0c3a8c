// What the model's head read of the newest tokens of each slot, for layers that predict further
// ahead (ops/ahead/spec.py): they need it of each token that they read.
//
// Not of all tokens: at a hidden width of 4,096 those of a context of 8,192 would take 134 MB. So
// such layers begin in the middle of a long text, as they do behind a kept prefix, whose states
// nobody has. They are then less often right, and nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace monolane {

class KeptStates {
 public:
  static constexpr int64_t kMost = 256;  // tokens of a slot

  KeptStates(int slots, int64_t hidden) : hidden_(hidden), slots_(slots) {}

  // What the head read of the token at a position [D]. Those behind it are taken back.
  void keep(int slot, int64_t position, const float* state) {
    Slot& mine = slots_[slot];
    mine.states.resize(static_cast<size_t>(kMost * hidden_));
    if (position < mine.begin || position > mine.end) mine.begin = position;
    mine.end = position + 1;
    mine.begin = std::max(mine.begin, mine.end - kMost);
    std::copy_n(state, hidden_, mine.states.data() + position % kMost * hidden_);
  }

  void forget(int slot) { slots_[slot].begin = slots_[slot].end = 0; }

  // Positions begin .. end - 1 are there.
  int64_t begin(int slot) const { return slots_[slot].begin; }
  int64_t end(int slot) const { return slots_[slot].end; }

  // Adds those of `count` positions to a list of rows [D].
  void append(int slot, int64_t position, int64_t count, std::vector<float>& rows) const {
    for (int64_t i = position; i < position + count; ++i) {
      const float* state = slots_[slot].states.data() + i % kMost * hidden_;
      rows.insert(rows.end(), state, state + hidden_);
    }
  }

 private:
  struct Slot {
    std::vector<float> states = {};  // [kMost, D], a ring
    int64_t begin = 0, end = 0;
  };

  const int64_t hidden_;  // D
  std::vector<Slot> slots_;
};

}  // namespace monolane
