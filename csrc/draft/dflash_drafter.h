// Guesses a block of tokens in one pass by a DFlash drafter (arXiv:2602.06036): layers over what
// the model's stream held of all tokens before, in several places, and over the block itself.
//
//   c = norm(fc [stream 0 | stream 1 | ...])  of each token that the model has read: of it every
//                                             layer keeps a key and a value, and nothing else
//   x = embeddings of [the last token, mask, mask, ...], B rows, which are computed at once: each
//       layer attends over the keys of all c, and of all rows (causal: of those up to its own)
//   logits = the model's head of norm(x): row i >= 1 is the token i places behind the last one;
//            of DSpark row i >= 0 the token i + 1 places behind it, drawn as markov_head.h has it
//
// Its layers are computed in int8 by all workers (draft_layers.h), the head as the model's own is;
// of its rows those alone that are wanted. The block's own keys are dropped: the next draft's take
// their place. What it keeps it reads as read_tokens.h has it.
//
// Shape legend: T rows of a step, D hidden, n streams, B rows of a block, V vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "draft/draft_choice.h"
#include "draft/draft_layers.h"
#include "draft/draft_steps.h"
#include "draft/joint_drafter.h"
#include "draft/markov_head.h"
#include "draft/read_tokens.h"

namespace monolane {

// A drafter as a loader hands it over; what it points to is read once.
struct DflashWeights {
  DraftShape shape;  // I is D, the widest nD
  std::vector<DraftLayerWeights> layers;
  std::vector<const float*> input_norms;   // [D] of each layer
  StoredMatrix fc;                         // [D, nD]
  const float *context_norm, *final_norm;  // [D]
  int64_t streams, block;                  // n, B
  int32_t mask;                            // token
  bool causal;                             // within the block
  MarkovWeights markov;                    // of DSpark
};

class DflashDrafter final : public JointDrafter {
 public:
  // A worker's logits of rows that the model's head reads, [rows, D]: [rows, V].
  using Head = std::function<void(int worker, const float* normed, int64_t rows, float* logits)>;

  // `embedding`: the model's, [V, D]. Throws std::invalid_argument if a width has no whole groups,
  // a weight no code, the mask is none of the model's tokens, or a block does not fit a step.
  DflashDrafter(const Kernels& kernels, const Matrix& embedding, float embedding_scale, Head head,
                const DflashWeights& weights, int workers, int slots, int64_t context);

  DraftBy by() const override { return DraftBy::kHeads; }
  bool sees_states() const override { return true; }
  void see(int slot, int64_t position, const float* streams) override {
    reads_.see(slot, position, streams);
  }
  void forget(int slot) override { reads_.forget(slot); }
  void draft(std::vector<DraftAsk>& asks, const GoOn& go_on, const std::function<void()>& lend,
             const std::atomic<bool>& stop) override;
  void take_part(int worker) override;
  size_t block() const override { return static_cast<size_t>(drafted_); }
  double cost(int sequences) const override { return steps_.cost(sequences); }
  double reading_cost(const DraftAsk& ask) const override { return reads_.cost(ask); }

 private:
  void lay_out();
  void add_block(const DraftAsk& ask);
  void go_on_from_step();
  void draw_tokens();
  MarkovHead::Drawn draw(const float* logits, const float* read, int32_t before, const Draw& draw,
                         uint32_t position);
  void run_context(int worker);
  void run_block(int worker);
  void run_head(int worker);

  const Kernels& kernels_;
  const Matrix embedding_;  // [V, D]
  const float embedding_scale_;
  const Head head_;
  const int64_t hidden_, streams_, block_;
  const int64_t drafted_;  // tokens of a block: its last rows say them
  const int32_t mask_;
  const bool causal_;
  const float norm_eps_;
  DraftChoice choice_;
  const std::vector<float> context_norm_, final_norm_;
  std::vector<std::vector<float>> input_norms_;
  const Int8Matrix fc_;
  std::unique_ptr<MarkovHead> markov_;  // or null

  ReadTokens reads_;
  DraftSteps steps_;
  DraftLayers layers_;
  std::unique_ptr<Arena> given_;        // [T, nD]
  std::unique_ptr<Arena> logits_;       // [T, V]
  bool reading_ = false;                // rows of this step are tokens to be read
  std::vector<int32_t> tokens_;         // of the rows of a step, if they are blocks
  std::vector<int64_t> wanted_;         // rows whose logits are wanted
  std::vector<const DraftAsk*> drawn_;  // whose blocks are in this step
  std::vector<const DraftAsk*> asked_;  // all that can be drafted for
  size_t next_ = 0;                     // of these
};

}  // namespace monolane
