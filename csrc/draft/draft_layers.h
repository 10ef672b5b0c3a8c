// Layers of Llama's kind as drafters compute them, over keys and values of their own, which are
// kept by slot.
//
//   x += o attention(q y, k y, v y), y what the drafter says;  x += down (silu(gate n) * (up n)),
//   n = norm(x)
//
// Drafts need not be exact: products are in int8, whatever is stored. All workers share each
// product's rows and meet behind it; the leader lays out rows.
//
// Shape legend: T rows of a step, D hidden, I columns of y, F inner, H query heads, K KV heads, h
// head width.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft/draft_steps.h"
#include "draft/int8_matrix.h"
#include "kernels/kernels.h"
#include "memory/arena.h"

namespace monolane {

// A matrix as a loader hands it over, of plain numbers; it is read once.
struct StoredMatrix {
  const void* values;
  Format format;
};

struct DraftShape {
  int64_t hidden, input, inner, heads, kv_heads, head_dim;  // D, I, F, H, K, h
  int64_t widest;            // columns of what else is multiplied, at most
  const float* frequencies;  // [h / 2]
  float norm_eps, amplitude;
};

struct DraftLayerWeights {
  StoredMatrix q, k, v;                                    // [Hh, I], [Kh, I] twice
  StoredMatrix o;                                          // [D, Hh]
  StoredMatrix gate, up, down;                             // [F, D] twice, [D, F]
  const float* mlp_norm;                                   // [D]
  const float *query_norm = nullptr, *key_norm = nullptr;  // [h] of each head, or null
  int64_t window = 0;                                      // 0: all keys are seen
};

class DraftLayers {
 public:
  static constexpr int64_t kStepRows = 64;

  struct Row {
    int slot;
    int64_t place;  // of its own key among the slot's
    int64_t seen;   // it sees the first so many, of which a window may leave out the oldest
  };

  // `rows`, `keys`: of a step, and of a slot, at most. Throws std::invalid_argument if a width has
  // no whole groups, or a weight no code.
  DraftLayers(const Kernels& kernels, const DraftShape& shape,
              const std::vector<DraftLayerWeights>& layers, int workers, int slots, int64_t rows,
              int64_t keys, DraftSteps& steps);

  // ---- By the leader ----

  void clear() { rows_.clear(); }
  void add(const Row& row);
  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  const std::vector<Row>& each() const { return rows_; }

  // ---- By every worker ----

  size_t count() const { return layers_.size(); }
  int workers() const { return static_cast<int>(workers_.size()); }
  float* x() const { return x_->as<float>(); }                                    // [T, D]
  float* input(int worker) const { return workers_[worker].input->as<float>(); }  // [T, I or D]

  // How far the rows of a step turn: before all that follows.
  void set_angles(int worker);

  // Attention by what `input` has of this worker's, which is all rows, [T, I]; the stream gains it.
  void attend(int worker, size_t layer);

  // The same as far as keys and values.
  void keep_keys(int worker, size_t layer);

  // The MLP; leaves the norm in `input`.
  void run_mlp(int worker, size_t layer);

  // Leaves the norm of the stream in `input`.
  void norm(int worker, const float* scale) const;

  // This worker's rows of a product with what was packed, at y and `stride` floats further for each
  // row.
  void pack(int worker, const float* x, int64_t columns, int64_t rows) const;
  void multiply(int worker, const Int8Matrix& codes, int64_t rows, float* y, int64_t stride) const;

  // The same where all workers see it: [rows, R].
  void multiply_whole(int worker, const Int8Matrix& codes, int64_t rows, float* y) const {
    const int64_t all = codes.matrix.rows;
    multiply(worker, codes, rows, y + share_begin(all, worker, workers()), all);
  }

 private:
  struct Layer {
    Layer(const DraftLayerWeights& weights, const DraftShape& shape, int slots);
    Int8Matrix q, k, v, o, gate, up, down;
    std::vector<float> mlp_norm, query_norm, key_norm;
    int64_t window;
    std::vector<std::vector<float>> keys, values;  // by slot: [tokens, K, h]
  };
  struct Worker {                            // what only it touches
    std::unique_ptr<Arena> input;            // [T, I or D]
    std::unique_ptr<Arena> packed;           // [T, packed]
    std::unique_ptr<Arena> product, second;  // [T, rows of its share]
    std::unique_ptr<Arena> query, partial;   // [H / K, h], [H / K, h + 2]
    std::unique_ptr<Arena> scores;           // as kernels' `attend` asks for
  };

  void store_keys(int worker, Layer& layer);
  void attend_keys(int worker, const Layer& layer);
  void prepare_heads(int64_t row, const std::vector<float>& norm, int64_t count,
                     float* heads) const;
  void add_product(int worker, const Int8Matrix& codes);

  const Kernels& kernels_;
  const int64_t hidden_, input_, inner_, heads_, kv_heads_, head_dim_;
  const float norm_eps_, amplitude_;
  const std::vector<float> frequencies_;
  DraftSteps& steps_;
  std::vector<Layer> layers_;
  std::unique_ptr<Arena> x_;                               // [T, D]
  std::unique_ptr<Arena> angles_;                          // [T, 2, h / 2] cosines and sines
  std::unique_ptr<Arena> query_, key_, value_, attended_;  // [T, Hh], [T, Kh] twice, [T, Hh]
  std::unique_ptr<Arena> product_;                         // [T, F]
  std::vector<Worker> workers_;
  std::vector<Row> rows_;
};

}  // namespace monolane
