// Guesses the next tokens by a Gemma 4 assistant: a few layers that attend over the model's own
// keys and values, and so have read what the model has read.
//
//   x = before [embedding of the token | state]    state: what the model's head read of the token
//                                                   before, then what the assistant made itself
//   x += norm(o attention(turned norm(q norm(x))));  x += norm(down (gelu(gate n) * (up n)));
//   x *= the layer's scale                           n = norm(x)
//   state' = after norm(x);  logits = head norm(x)
//
// A query stands at the place of the newest token, whatever was drafted since: there are no keys of
// what was drafted. So nothing is kept but the state, as with heads: nothing is to be caught up
// with behind a long prompt or a kept prefix, nor to be taken back.
//
// The head is the assistant's own. With centroids only the tokens of those that come out highest
// have logits: of 262,144 rows 4,096 are read.
//
// Matrices are used as they are stored, and multiplied as the model's are. All workers share each
// product's rows, and keys, and meet behind them; the leader draws.
//
// Shape legend: T sequences that draft, D hidden, F inner, B the model's hidden, H query heads, K
// KV heads, h head width, S splits of the keys, V vocabulary, N centroids, k chosen of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft/draft_choice.h"
#include "draft/draft_steps.h"
#include "draft/joint_drafter.h"
#include "kernels/kernels.h"
#include "memory/arena.h"
#include "state/sequences.h"

namespace monolane {

struct AssistantLayer {
  int64_t heads, kv_heads, head_dim;  // H, K, h
  int64_t keys_of;                    // the model's layer whose keys and values it reads
  int64_t
      window;   // 0: it sees all keys; else that layer's window: the newest one, and so many more
  Matrix q, o;  // [Hh, D], [D, Hh]
  Matrix gate, up, down;               // [F, D] twice, [D, F]
  std::vector<float> attention_norms;  // [2, D] before and behind attention
  std::vector<float> mlp_norms;        // [2, D] before and behind the MLP
  std::vector<float> query_norm;       // [h]
  std::vector<float> frequencies;      // [h / 2]
  float amplitude;                     // of cosine and sine
  float scale;                         // of the stream behind it
};

// An assistant as a loader hands it over. Matrices point to what must outlive the drafter; all have
// one format of plain numbers.
struct AssistantWeights {
  std::vector<AssistantLayer> layers;
  Matrix before, after;           // [D, 2B], [B, D]
  Matrix head;                    // [V, D]
  Matrix centroids;               // [N, D]; no rows: all tokens have logits
  int64_t chosen = 0;             // k
  std::vector<int32_t> ordering;  // [V] tokens, those of one centroid after another
  std::vector<float> final_norm;  // [D]
  float norm_eps;
};

class AssistantDrafter final : public JointDrafter {
 public:
  // `embedding`: the model's, [V, B]; `sequences`: whose keys it reads. Throws
  // std::invalid_argument where these, or the weights among themselves, do not fit.
  AssistantDrafter(const Kernels& kernels, Activation activation, const Matrix& embedding,
                   float embedding_scale, const Sequences& sequences, AssistantWeights weights,
                   int workers);

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
    int64_t length;     // keys that are there: all tokens but the last
    int64_t resumable;  // see Sequences::first_resumable
    uint32_t drafted = 0;
    int32_t last = 0;  // token
  };
  struct Worker {                               // what only it touches
    std::unique_ptr<Arena> x;                   // [T, D]
    std::unique_ptr<Arena> normed;              // [T, D]
    std::unique_ptr<Arena> input;               // [T, 2B] or [T, Hh]
    std::unique_ptr<Arena> packed;              // [T, packed]
    std::unique_ptr<Arena> gate, up;            // [T, rows of its share]
    std::unique_ptr<Arena> query, sums;         // [H / K, h], [H / K, h + 2]
    std::unique_ptr<Arena> scores;              // as `attend` asks for
    std::vector<float> cosine = {}, sine = {};  // [h / 2]
    std::vector<int32_t> ranked = {};           // [N]
    std::vector<int32_t> candidates = {};       // [T, k V / N] tokens
  };

  void check() const;
  void run_input(int worker);
  void run_attention(int worker, const AssistantLayer& layer);
  void run_mlp(int worker, const AssistantLayer& layer);
  void run_head(int worker);
  void run_candidates(int worker);
  void attend(int worker, const AssistantLayer& layer);
  void attend_split(Worker& w, const AssistantLayer& layer, int64_t unit);
  void set_query(Worker& w, const AssistantLayer& layer, int64_t t, int64_t kv_head) const;
  void merge_splits(Worker& w, const AssistantLayer& layer) const;
  void choose_candidates(Worker& w) const;
  void draw_tokens();

  int64_t first_key(const AssistantLayer& layer, const Running& running) const;
  int64_t splits(const AssistantLayer& layer) const;
  void norm(const Worker& w, const float* scale) const;
  void gain(const Worker& w, const float* scale) const;
  void pack(const Worker& w, const float* x, int64_t columns) const;
  void multiply(const Worker& w, int worker, const Matrix& matrix, float* y, int64_t stride) const;
  void multiply_whole(const Worker& w, int worker, const Matrix& matrix, const Arena& out) const;
  int workers() const { return static_cast<int>(workers_.size()); }
  int64_t rows() const { return static_cast<int64_t>(running_.size()); }
  bool orders() const { return weights_.centroids.rows > 0; }

  const Kernels& kernels_;
  const Matrix embedding_;  // [V, B]
  const float embedding_scale_;
  const Sequences& sequences_;
  const AssistantWeights weights_;
  const Activation activation_;
  const int64_t hidden_, backbone_, vocab_;  // D, B, V
  const int64_t candidates_;                 // tokens that have logits
  DraftChoice choice_;                       // where these are all
  std::vector<int32_t> named_;               // [candidates] the leader's, where they are not

  std::unique_ptr<Arena> state_, next_;  // [T, B]
  std::unique_ptr<Arena> gain_;          // [T, D]
  std::unique_ptr<Arena> query_;         // [T, Hh]
  std::unique_ptr<Arena> parts_;         // [T, K, S, H / K, h + 2]
  std::unique_ptr<Arena> product_;       // [T, F]
  std::unique_ptr<Arena> logits_;        // [T, candidates]
  std::unique_ptr<Arena> ranks_;         // [T, N]

  std::vector<Worker> workers_;
  std::vector<Running> running_;  // the rows of a step; empty: the drafts are there
  DraftSteps steps_;
};

}  // namespace monolane
