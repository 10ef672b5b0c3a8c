// Guesses the next tokens by asking a smaller model, or the same one in fewer bits.
//
// The draft model is an executor of its own, with as many workers and slots. It runs on the threads
// of the executor for which it drafts, between two of its passes: cores that both would use at once
// would only wait for each other. Each of its slots follows the sequence of the same slot there: it
// reads what it has not seen yet, a part at a time, and takes back what it drafted in vain. It
// draws with the sequence's own noise of each position (docs/sampling.md), so what a sampled token
// will be is guessed as well as what a greedy one will be.
//
// For all sequences in one go, since a pass of its model costs hardly more with several rows than
// with one.
//
// A layer of the model's own that predicts further ahead is such a model, too (ops/ahead/spec.py).
// What it reads of a token is the state of the one before: so it begins with a sequence's second
// token, or behind it, where the states begin that were kept.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "draft/draft_model.h"
#include "draft/joint_drafter.h"
#include "draft/kept_states.h"
#include "draft/pass_cost.h"

namespace monolane {

class ModelDrafter final : public JointDrafter {
 public:
  // `vocab`: of the sequences; what is drawn beyond it is no token of theirs. Of a model that reads
  // states, these are of its own hidden width.
  ModelDrafter(DraftModel& model, int slots, int32_t vocab);

  DraftBy by() const override { return states_ ? DraftBy::kHeads : DraftBy::kModel; }
  bool sees_states() const override { return states_.has_value(); }
  void see(int slot, int64_t position, const float* state) override {
    states_->keep(slot, position, state);
  }
  void forget(int slot) override {
    if (states_) states_->forget(slot);
  }
  void draft(std::vector<DraftAsk>& asks, const GoOn& go_on, const std::function<void()>& lend,
             const std::atomic<bool>& stop) override;
  void take_part(int worker) override;
  double cost(int sequences) const override { return cost_.of(sequences); }
  double reading_cost(const DraftAsk& ask) const override;

 private:
  // How a slot of the model may follow a sequence.
  struct Reading {
    size_t first;  // token of the sequence that is the slot's first one
    size_t held;   // so many from there on it has read, and need not read again
  };

  bool prepare(const DraftAsk& ask, Advance& advance);
  std::optional<Reading> find_reading(int slot, const std::vector<int32_t>& tokens) const;
  size_t common(int slot, const std::vector<int32_t>& tokens, size_t first) const;

  DraftModel& model_;
  const int32_t vocab_;
  std::optional<KeptStates> states_;  // of a model that reads them
  std::vector<size_t> first_;         // [slots] token of the sequence
  std::vector<std::vector<int32_t>>
      held_;  // [slots] tokens that the model's slot holds, from there
  PassCost cost_;
  PassCost read_{1};  // of a token among many
};

}  // namespace monolane
