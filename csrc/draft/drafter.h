// What proposes the next tokens of one sequence. A proposal costs time if it is wrong and nothing
// else: each drafted token is drawn again from the model's own logits, see docs/lossless.md.
//
// It knows the text alone. A draft model and heads, which draft for all sequences in one go on all
// workers, are no Drafters: joint_drafter.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolane {

constexpr int32_t kTextEnd = -1;  // behind each of the texts to copy from; equals no token

class Drafter {
 public:
  virtual ~Drafter() = default;

  // A part of other texts, such as earlier answers: to copy from, not to go on from. Each ends with
  // kTextEnd. Before the first append; a drafter that copies nothing leaves them alone.
  virtual void add_texts(const int32_t* /*tokens*/, size_t /*count*/) {}

  // The sequence goes on with tokens that were given.
  virtual void append(const int32_t* tokens, size_t count) = 0;

  // It goes on with tokens that the model drew, drafted before or not: a drafter may learn.
  virtual void observe(const int32_t* tokens, size_t count) = 0;

  virtual size_t length() const = 0;  // tokens of the sequence, since the last clear
  virtual void clear() = 0;

  // Writes up to `most` tokens that may follow, and for each how probably it is right if those
  // before it were; returns how many. 0: nothing to propose.
  virtual size_t draft(size_t most, int32_t* tokens, float* chances) const = 0;
};

}  // namespace monolane
