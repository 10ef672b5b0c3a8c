// Guesses the next tokens by an EAGLE-3 drafter (arXiv:2503.01840): one layer that attends, over
// what three places of the model's stream held of each token.
//
//   x = fc [stream 0 | stream 1 | stream 2]  of the token before, or what it made of that itself
//   y = [norm(embedding of the token) | norm(x)];  x += o attention(q y, k y, v y)
//   x += down (silu(gate n) * (up n)), n = norm(x);  logits = head norm(x) over R tokens
//
// Drafts need not be exact: products are in int8, whatever the drafter is stored in. All workers
// share each product's rows and meet behind it; the leader lays out rows, and draws.
//
// It reads a token with the streams of the one before, of which the newest are kept
// (kept_states.h): so behind a long prompt, or a kept prefix, its attention begins there.
//
// Shape legend: T rows of a step, D hidden, F inner, H query heads, K KV heads, h head width, R
// drafted vocabulary, V vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "draft/draft_choice.h"
#include "draft/draft_steps.h"
#include "draft/int8_matrix.h"
#include "draft/joint_drafter.h"
#include "draft/kept_states.h"
#include "draft/pass_cost.h"

namespace monolane {

constexpr int kEagleStreams = 3;

// A drafter as a loader hands it over; what it points to is read once.
struct EagleWeights {
  struct Stored {
    const void* values;
    Format format;  // of plain numbers
  };
  int64_t hidden, inner, heads, kv_heads, head_dim, drafted;     // D, F, H, K, h, R
  Stored fc;                                                     // [D, 3D]
  Stored q, k, v;                                                // [Hh, 2D], [Kh, 2D] twice
  Stored o;                                                      // [D, Hh]
  Stored gate, up, down;                                         // [F, D] twice, [D, F]
  Stored head;                                                   // [R, D]
  const float *token_norm, *state_norm, *mlp_norm, *final_norm;  // [D]
  const float* frequencies;                                      // [h / 2]
  const int32_t* tokens;  // [R] the model's id of each row of `head`
  float norm_eps, amplitude;
  bool norm_joins;  // x is what was normed, from there on
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
    states_.keep(slot, position, streams);
  }
  void forget(int slot) override {
    states_.forget(slot);
    read_[slot].first = 0;  // tokens may be the same, behind others
  }
  void draft(std::vector<DraftAsk>& asks, const GoOn& go_on, const std::function<void()>& lend,
             const std::atomic<bool>& stop) override;
  void take_part(int worker) override;
  double cost(int sequences) const override { return steps_.cost(sequences); }
  double reading_cost(const DraftAsk& ask) const override;

 private:
  // What a slot has read: tokens of its sequence from `first` on, and their keys and values.
  struct Read {
    size_t first = 0;
    std::vector<int32_t> held = {};
    std::vector<float> keys = {}, values = {};  // [tokens, K, h]
  };
  // A sequence that is drafted for.
  struct Running {
    const DraftAsk* ask;
    uint32_t drafted = 0;
    int32_t last = 0;   // token to be read next
    int64_t state = 0;  // row of `own_`
  };
  struct Row {
    int slot;
    int64_t place;  // among what the slot has read
    int32_t token;
    int64_t running = -1;  // whose draft goes on behind it
  };
  struct Worker {                               // what only it touches
    std::unique_ptr<Arena> input;               // [T, 2D]
    std::unique_ptr<Arena> packed;              // [T, packed]
    std::unique_ptr<Arena> product, second;     // [T, rows of its share]
    std::unique_ptr<Arena> query, partial;      // [H / K, h], [H / K, h + 2]
    std::unique_ptr<Arena> scores;              // as `attend` asks for
    std::vector<float> cosine = {}, sine = {};  // [h / 2]
  };

  std::optional<size_t> find_reading(const DraftAsk& ask, size_t& held) const;
  void prepare(const DraftAsk& ask);
  void lay_out();
  void go_on_from_step();
  void run_attention(int worker);
  void run_mlp(int worker);
  void run_head(int worker);
  void store_keys(int worker);
  void attend(int worker);
  void set_angles(Worker& w, int64_t place) const;
  void rotate(const Worker& w, float* heads, int64_t count) const;
  void pack(Worker& w, const float* x, int64_t columns, int64_t rows) const;
  void multiply(Worker& w, int worker, const Int8Matrix& codes, float* y, int64_t stride) const;
  void add_product(Worker& w, int worker, const Int8Matrix& codes);
  int workers() const { return static_cast<int>(workers_.size()); }
  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }

  const Kernels& kernels_;
  const Matrix embedding_;  // [V, D]
  const int64_t hidden_, inner_, heads_, kv_heads_, head_dim_, context_;
  const float norm_eps_, amplitude_;
  const bool norm_joins_;
  DraftChoice choice_;
  const std::vector<float> token_norm_, state_norm_, mlp_norm_, final_norm_, frequencies_;
  const Int8Matrix fc_, q_, k_, v_, o_, gate_, up_, down_, head_;

  KeptStates states_;  // [3D]
  std::vector<Read> read_;
  std::unique_ptr<Arena> given_;                           // [T, 3D]
  std::unique_ptr<Arena> x_;                               // [T, D]
  std::unique_ptr<Arena> query_, key_, value_, attended_;  // [T, Hh], [T, Kh] twice, [T, Hh]
  std::unique_ptr<Arena> product_;                         // [T, F]
  std::unique_ptr<Arena> logits_;                          // [slots, R]
  std::unique_ptr<Arena> own_;                             // [slots, D]
  std::vector<Worker> workers_;
  std::vector<Row> rows_;                          // of a step; empty: the drafts are there
  std::vector<int64_t> wanted_;                    // rows whose logits are wanted
  bool streams_given_ = false;                     // rows of this step begin with what is given
  std::vector<Running> running_;                   // by the order of asks
  std::vector<std::pair<size_t, size_t>> unread_;  // of those: next token to read, and the end
  DraftSteps steps_;
  PassCost read_cost_{1};  // of a token among many
};

}  // namespace monolane
