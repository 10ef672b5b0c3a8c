// What drafts for all sequences in one go, on the threads of the executor for which it drafts:
// between two of its passes, in a lent one, since cores that both would use at once would only
// wait.
//
// Not a Drafter: that one is of a sequence, and works alone on the leader's thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "abi/advance.h"

namespace monolane {

// What is asked of it for one sequence.
struct DraftAsk {
  const Advance* advance;              // how the sequence draws
  const std::vector<int32_t>* tokens;  // all of it, the last one not fed yet
  size_t prompt;                       // how many of them were given
  size_t most;                         // tokens to draft at most
  int64_t left;                        // tokens that the sequence may still draw
  Draft* draft;                        // by another drafter; it is kept, or replaced
  const float* hidden;  // [D] what the head read when it drew the last token, or null
  double least = 0;     // drafts go on as long as the next token is right with this chance
  double rate = 0;      // that a token is right if those before it are, by experience
  bool probe = false;   // does not promise to pay: to learn whether it would
};

class JointDrafter {
 public:
  // Says of a token drawn for a sequence, and how probable the drafter has it, whether to go on.
  using GoOn = std::function<bool(const DraftAsk&, int32_t token, float stated)>;

  virtual ~JointDrafter() = default;
  virtual DraftBy by() const = 0;
  virtual bool reads_hidden() const { return false; }

  // Whether it is told what the head read of every token, [D], or the streams at the taps, one
  // behind the other, by slot and position; and that a slot has another sequence from now on.
  virtual bool sees_states() const { return false; }
  virtual void see(int /*slot*/, int64_t /*position*/, const float* /*state*/) {}
  virtual void forget(int /*slot*/) {}

  // Drafts for sequences of different slots. `lend` has every worker call `take_part`, which
  // returns when the drafts are there; `stop` ends it soon.
  virtual void draft(std::vector<DraftAsk>& asks, const GoOn& go_on,
                     const std::function<void()>& lend, const std::atomic<bool>& stop) = 0;
  virtual void take_part(int worker) = 0;

  // Tokens that it drafts at once, however few are asked for, and at most; 0: one behind the other.
  virtual size_t block() const { return 0; }

  // Expected nanoseconds of a drafted token of each of so many sequences, or of a block, and of
  // reading what has not been read of one; 0 as long as there is nothing to go by.
  virtual double cost(int sequences) const = 0;
  virtual double reading_cost(const DraftAsk&) const { return 0; }
};

// How probable a token is by logits. An estimate, which experience corrects: as they are, in float.
inline float chance_of(const float* logits, int32_t count, int32_t token) {
  constexpr float kFar = 16;  // logits that lie this far below the best add 1e-7 each
  const float peak = *std::max_element(logits, logits + count);
  float total = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (logits[i] > peak - kFar) total += std::exp(logits[i] - peak);
  }
  return std::exp(logits[token] - peak) / total;
}

}  // namespace monolane
