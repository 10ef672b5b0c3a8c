// Guesses the next tokens from what the model's head read when it drew the last one: a chain of one
// small gated block, whose state is first that and then the block's own.
//
//   s = norm(what the head read);  then for each drafted token, from the last token on:
//   u = [s | norm(embedding of the token before)];  s += down (silu(gate u) * (up u))
//   logits = head s' over the drafted vocabulary, s' = norm(s)
//
// Why not a layer with attention, as EAGLE's: it needs what the head read of every token of the
// sequence, which kept prefixes do not have, and a cache of its own. This has no memory but the
// last token's, so nothing is to be caught up with, copied or taken back; and it streams some 5 %
// of the bytes that a pass of the model does (docs/speculation.md).
//
// All workers share each product's rows and meet behind it; the leader draws. Drafts need not be
// exact: products are in int8, whatever the model's are.
//
// Shape legend: T sequences that draft, D hidden, F inner, R drafted vocabulary, V vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft/draft_choice.h"
#include "draft/draft_steps.h"
#include "draft/int8_matrix.h"
#include "draft/joint_drafter.h"
#include "kernels/kernels.h"
#include "memory/arena.h"

namespace monolane {

// Heads as a loader hands them over; what they point to is read once.
struct HeadsWeights {
  int64_t hidden, inner, drafted, vocab;  // D, F, R, V
  const float *gate, *up;                 // [F, 2D] each
  const float* down;                      // [D, F]
  const float* head;                      // [R, D]
  const int32_t* tokens;                  // [R] the model's id of each row of `head`
  float norm_eps;
};

class HeadsDrafter final : public JointDrafter {
 public:
  // `embedding`: the model's, [V, D]. Throws std::invalid_argument if a width has no whole groups,
  // a weight no code, or a token is none of the model's.
  HeadsDrafter(const Kernels& kernels, const Matrix& embedding, const HeadsWeights& weights,
               int workers, int slots);

  DraftBy by() const override { return DraftBy::kHeads; }
  bool reads_hidden() const override { return true; }
  void draft(std::vector<DraftAsk>& asks, const GoOn& go_on, const std::function<void()>& lend,
             const std::atomic<bool>& stop) override;
  void take_part(int worker) override;
  double cost(int sequences) const override { return steps_.cost(sequences); }

 private:
  // A sequence that goes on drafting.
  struct Running {
    const DraftAsk* ask;
    uint32_t drafted = 0;
    int32_t last = 0;  // token
  };
  struct Worker {                            // what only it touches
    std::unique_ptr<Arena> input;            // [T, 2D]
    std::unique_ptr<Arena> packed;           // [T, packed]
    std::unique_ptr<Arena> product, second;  // [T, rows of its share]
  };

  void run_block(int worker);
  void run_head(int worker);
  void multiply(Worker& w, int worker, const Int8Matrix& codes, float* y) const;
  void pack(Worker& w, const float* x, int64_t columns) const;
  void draw_tokens();

  const Kernels& kernels_;
  const Matrix embedding_;  // [V, D]
  const int64_t hidden_, inner_, drafted_;
  const float norm_eps_;
  DraftChoice choice_;
  const std::vector<float> ones_;  // [D] a norm without a scale
  const Int8Matrix gate_, up_, down_, head_;
  std::unique_ptr<Arena> state_;    // [T, D]
  std::unique_ptr<Arena> product_;  // [T, F]
  std::unique_ptr<Arena> logits_;   // [T, R]

  std::vector<Worker> workers_;
  std::vector<Running> running_;  // the rows of a step; empty: the drafts are there
  DraftSteps steps_;
};

}  // namespace monolane
