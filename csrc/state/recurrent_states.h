// What every sequence keeps in a fixed size: of each module that has such a state (PlanState), and
// of each part of it, the state's numbers, and inputs.
//
// A state goes forward only. So what may be taken back is not in it yet: of drafted tokens, and of
// the token whose draw waits for a guide, the inputs are kept beside the state, and the sequence's
// next pass takes their steps first, as far as they were right (ops/recurrent.h). A step is the
// same arithmetic whenever it is taken: no bit depends on it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "abi/plan.h"
#include "memory/arena.h"

namespace monolane {

class RecurrentStates {
 public:
  RecurrentStates(const std::vector<PlanModule>& modules, int64_t slots);

  bool any() const { return slot_floats_ > 0; }

  const PlanState& kept(int64_t module) const { return modules_[module]; }

  // [numbers], behind the first `position` tokens of the sequence.
  float* state(int64_t slot, int64_t module, int64_t part) const {
    const Module& x = modules_[module];
    return memory_->as<float>() + slot * slot_floats_ + x.offset + part * x.floats(kPlanMaxWidth);
  }
  // [before + ..][inputs]: of the last tokens of those, then of tokens behind them.
  float* inputs(int64_t slot, int64_t module, int64_t part) const {
    return state(slot, module, part) + modules_[module].numbers;
  }

  // How many tokens of a sequence its states are of; -1: they were restored without states.
  int64_t position(int64_t slot) const { return positions_[slot]; }
  void set_position(int64_t slot, int64_t position) { positions_[slot] = position; }

  // The least tokens that the sequence may be cut to, beside none.
  int64_t first_resumable(int64_t slot) const { return any() ? positions_[slot] : 0; }

  void copy(int64_t source, int64_t target);

  // What a sequence is kept as behind its first `end` tokens: with the inputs of those behind
  // `position`. Of as many bytes as `takes_tail` says there may be, `restore_tail` puts it back.
  int64_t tail_bytes(int64_t slot, int64_t end) const { return bytes_with(end - positions_[slot]); }
  void save_tail(int64_t slot, int64_t end, char* tail) const;
  bool takes_tail(int64_t end, int64_t bytes) const;
  void restore_tail(int64_t slot, int64_t end, int64_t bytes, const char* tail);

  // Bytes of a tail with the inputs of so many tokens.
  int64_t bytes_with(int64_t tokens) const;

  size_t bytes() const { return memory_ == nullptr ? 0 : memory_->bytes(); }

 private:
  struct Module : PlanState {
    int64_t offset;  // floats, within a slot

    // Of a part, with the inputs of so many tokens behind the state.
    int64_t floats(int64_t tokens) const { return numbers + (before + tokens) * inputs; }
  };

  // Calls move(a part's numbers, bytes) for all that is saved of a slot, in order.
  template <typename Move>
  void for_parts(int64_t slot, int64_t tokens, Move move) const;
  int64_t tokens_of(int64_t bytes) const {
    return (bytes - bytes_with(0)) / (bytes_with(1) - bytes_with(0));
  }

  std::vector<Module> modules_;
  int64_t slot_floats_ = 0;
  std::vector<int64_t> positions_;
  std::unique_ptr<Arena> memory_;
};

}  // namespace monolane
