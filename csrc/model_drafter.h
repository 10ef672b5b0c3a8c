// Guesses the next tokens by asking a smaller model, or the same one in fewer bits.
//
// The draft model is an executor of its own, with as many workers and slots. It runs on the threads
// of the executor for which it drafts, between two of its passes: cores that both would use at once
// would only wait for each other. Each of its slots follows the sequence of the same slot there: it
// reads what it has not seen yet, a part at a time, and takes back what it drafted in vain. It
// draws with the sequence's own noise of each position (docs/sampling.md), so what a sampled token
// will be is guessed as well as what a greedy one will be.
//
// Not a Drafter: it drafts for all sequences in one go, since a pass of its model costs hardly more
// with several rows than with one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "advance.h"
#include "pass_cost.h"

namespace monolane {

class Executor;

// What is asked of it for one sequence.
struct ModelAsk {
  const Advance* advance;              // how the sequence draws
  const std::vector<int32_t>* tokens;  // all of it, the last one not fed yet
  size_t prompt;                       // how many of them were given
  size_t most;                         // tokens to draft at most
  int64_t left;                        // tokens that the sequence may still draw
  Draft* draft;                        // by another drafter; it is kept, or replaced
  double least = 0;    // drafts go on as long as the next token is right with this chance
  double rate = 0;     // that a token is right if those before it are, by experience
  bool probe = false;  // does not promise to pay: to learn whether it would
};

class ModelDrafter {
 public:
  // Says of a token drawn for a sequence, and how probable the draft model has it, whether to go
  // on.
  using GoOn = std::function<bool(const ModelAsk&, int32_t token, float stated)>;

  // `vocab`: of the sequences; what is drawn beyond it is no token of theirs.
  ModelDrafter(Executor& model, int slots, int32_t vocab);

  // Drafts for sequences of different slots. `lend` runs the model's epoch on the threads of the
  // executor for which it drafts; `stop` ends it soon.
  void draft(std::vector<ModelAsk>& asks, const GoOn& go_on, const std::function<void()>& lend,
             const std::atomic<bool>& stop);

  // Expected nanoseconds of a drafted token of each of so many sequences, and of reading what has
  // not been read of one; 0 as long as there is nothing to go by.
  double cost(int sequences) const { return cost_.of(sequences); }
  double reading_cost(int slot, const std::vector<int32_t>& tokens) const;

 private:
  bool prepare(const ModelAsk& ask, Advance& advance);
  size_t common(int slot, const std::vector<int32_t>& tokens) const;

  Executor& model_;
  const int32_t vocab_;
  std::vector<std::vector<int32_t>> held_;  // [slots] tokens that the model's slot holds
  PassCost cost_;
  PassCost read_{1};  // of a token among many
};

}  // namespace monolane
