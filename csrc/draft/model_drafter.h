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
#pragma once

#include <cstdint>
#include <vector>

#include "draft/draft_model.h"
#include "draft/joint_drafter.h"
#include "draft/pass_cost.h"

namespace monolane {

class ModelDrafter final : public JointDrafter {
 public:
  // `vocab`: of the sequences; what is drawn beyond it is no token of theirs.
  ModelDrafter(DraftModel& model, int slots, int32_t vocab);

  DraftBy by() const override { return DraftBy::kModel; }
  void draft(std::vector<DraftAsk>& asks, const GoOn& go_on, const std::function<void()>& lend,
             const std::atomic<bool>& stop) override;
  void take_part(int worker) override;
  double cost(int sequences) const override { return cost_.of(sequences); }
  double reading_cost(const DraftAsk& ask) const override;

 private:
  bool prepare(const DraftAsk& ask, Advance& advance);
  size_t common(int slot, const std::vector<int32_t>& tokens) const;

  DraftModel& model_;
  const int32_t vocab_;
  std::vector<std::vector<int32_t>> held_;  // [slots] tokens that the model's slot holds
  PassCost cost_;
  PassCost read_{1};  // of a token among many
};

}  // namespace monolane
