// Guesses the next tokens by an EAGLE-3 drafter (arXiv:2503.01840): one layer that attends, over
// what three places of the model's stream held of each token.
//
//   x = fc [stream 0 | stream 1 | stream 2]  of the token before, or what it made of that itself
//   y = [norm(embedding of the token) | norm(x)];  x += o attention(q y, k y, v y)
//   x += down (silu(gate n) * (up n)), n = norm(x);  logits = head norm(x) over R tokens
//
// Its layer is computed in int8 by all workers (draft_layers.h); the leader lays out rows, and
// draws. It reads a token with the streams of the one before (read_tokens.h).
//
// Shape legend: T rows of a step, D hidden, F inner, H query heads, K KV heads, h head width, R
// drafted vocabulary, V vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "draft/draft_choice.h"
#include "draft/draft_layers.h"
#include "draft/draft_steps.h"
#include "draft/joint_drafter.h"
#include "draft/read_tokens.h"

namespace monolane {

constexpr int kEagleStreams = 3;

// A drafter as a loader hands it over; what it points to is read once.
struct EagleWeights {
  DraftShape shape;                                   // I is 2D, the widest 3D
  DraftLayerWeights layer;                            // without norms of heads
  StoredMatrix fc;                                    // [D, 3D]
  StoredMatrix head;                                  // [R, D]
  int64_t drafted;                                    // R
  const float *token_norm, *state_norm, *final_norm;  // [D]
  const int32_t* tokens;                              // [R] the model's id of each row of `head`
  bool norm_joins;                                    // x is what was normed, from there on
};

class EagleDrafter final : public JointDrafter {
 public:
  // `embedding`: the model's, [V, D]. Throws std::invalid_argument if a width has no whole groups,
  // a weight no code, or a token is none of the model's.
  EagleDrafter(const Kernels& kernels, const Matrix& embedding, const EagleWeights& weights,
               int workers, int slots, int64_t context);

  DraftBy by() const override { return DraftBy::kHeads; }
  bool sees_states() const override { return true; }
  void see(int slot, int64_t position, const float* streams) override {
    reads_.see(slot, position, streams);
  }
  void forget(int slot) override { reads_.forget(slot); }
  void draft(std::vector<DraftAsk>& asks, const GoOn& go_on, const std::function<void()>& lend,
             const std::atomic<bool>& stop) override;
  void take_part(int worker) override;
  double cost(int sequences) const override { return steps_.cost(sequences); }
  double reading_cost(const DraftAsk& ask) const override { return reads_.cost(ask); }

 private:
  // A sequence that is drafted for.
  struct Running {
    const DraftAsk* ask;
    uint32_t drafted = 0;
    int32_t last = 0;   // token to be read next
    int64_t state = 0;  // row of `own_`
  };

  void lay_out();
  void go_on_from_step();
  void run_input(int worker);
  void run_head(int worker);
  void add(int slot, int64_t place, int32_t token);
  void want(size_t running);

  const Kernels& kernels_;
  const Matrix embedding_;  // [V, D]
  const int64_t hidden_, context_;
  const float norm_eps_;
  const bool norm_joins_;
  DraftChoice choice_;
  const std::vector<float> token_norm_, state_norm_, final_norm_;
  const Int8Matrix fc_, head_;

  ReadTokens reads_;
  DraftSteps steps_;
  DraftLayers layers_;
  std::unique_ptr<Arena> given_;   // [T, 3D]
  std::unique_ptr<Arena> logits_;  // [slots, R]
  std::unique_ptr<Arena> own_;     // [slots, D]
  std::vector<int32_t> tokens_;    // of the rows of a step
  // Rows whose logits are wanted, and whose draft goes on behind each.
  std::vector<std::pair<int64_t, size_t>> wanted_;
  bool streams_given_ = false;    // rows of this step begin with what is given
  std::vector<Running> running_;  // in the order in which they were taken to be read
};

}  // namespace monolane
