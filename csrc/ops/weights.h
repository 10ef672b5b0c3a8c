// The weights of a model as a loader hands them over.
//
// Shape legend: L lanes, D hidden, F intermediate, H query heads, K KV heads, h head_dim,
// V vocabulary, E experts, X inner width of one, Xs of what all tokens share beside them; of latent
// attention Q and R latents, r turned and n not, v a head's value; of a gated delta rule C tokens
// of a kernel, G key heads, U value heads, of widths d_k and d_v.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/plan_abi.h"
#include "kernels/kernels.h"

namespace monolane {

// Where the lanes' rows lie in a matrix that is stored as that of one lane (model/_lanes.py). By
// default they are its rows as they are, lane after lane.
struct LaneCut {
  int64_t column_parts = 1;  // lane l has the columns of part l, of all rows
  int64_t copies = 1;        // each block of rows serves so many times, one behind the other
  int64_t block = 1;         // rows

  int64_t rows(const Matrix& stored) const { return stored.rows * column_parts * copies; }
  int64_t columns(const Matrix& stored) const { return stored.cols / column_parts; }
  int64_t stored_row(const Matrix& stored, int64_t row) const {
    return column_parts > 1 ? row % stored.rows : row / (copies * block) * block + row % block;
  }
  int64_t stored_column(const Matrix& stored, int64_t row) const {
    return column_parts > 1 ? row / stored.rows * columns(stored) : 0;
  }
};

// A matrix in the loader's memory, usually a mapped file, and the format in which it is to be
// multiplied. Where that is not the stored one, workers convert their own rows: packed_weights.h.
struct Weight {
  Matrix stored;
  Format format;
  LaneCut cut = {};

  // Whether workers multiply by copies of their own rows instead of by what is stored.
  bool copied() const { return format != stored.format || cut.column_parts > 1 || cut.copies > 1; }
};

// The weights of a layer, all lanes of a matrix one below the other: row = lane * rows + r.
struct LayerWeights {
  Weight q, k, v;  // [H*h, D], or [H*2h, D] with gates, [K*h, D], [K*h, D]
  Weight o;        // [L*D, H*h/L]
  // Of latent attention, of one lane, in place of k and v; q is then [H*(n+r), Q], or D without Q.
  Weight q_down, kv_down;  // [Q, D], [R+r, D]
  Weight k_up, v_up;       // [H*R, n], [H*v, R]
  // Of a gated delta rule, of one lane, in place of all of these: rows of all q, all k and all v,
  // of z, of b and a by key heads.
  Weight delta_qkv, delta_z;      // [2G*d_k + U*d_v, D], [U*d_v, D]
  Weight delta_gates, delta_out;  // [2U, D], [D, U*d_v]
  Weight gate, up;                // [F, D]
  Weight down;                    // [L*D, F/L]
  // Of a layer that is a mixture, in place of gate, up and down; of one lane.
  Weight router;                                            // [E, D]
  std::vector<Weight> expert_gate, expert_up, expert_down;  // of each expert [X, D], [X, D], [D, X]
  Weight shared_gate, shared_up, shared_down;               // [Xs, D], [Xs, D], [D, Xs]
  // Those that a model does not have are null; the header says which it has.
  const float *attention_norm, *mlp_norm;            // [L, D] or [D], of what a module reads
  const float *post_attention_norm, *post_mlp_norm;  // the same of what a stream gains from it
  const float *q_bias, *k_bias, *v_bias;             // [H*h], [K*h], [K*h]
  const float *q_norm, *k_norm;  // [h]; over all heads: [H*h], [K*h]; of latents: [Q], [R]
  const float *sinks, *o_bias;   // [H], [D]
  const float *router_bias, *expert_gate_bias, *expert_up_bias;  // [E], [E, X], [E, X]
  const float* expert_down_bias;                                 // [E, D]
  const float* router_correction;                                // [E]
  const float* shared_expert_gate;                               // [D]
  const float* delta_conv;                // [C, G, channels of a key head], the last token's last
  const float *delta_decay, *delta_step;  // [U]
  const float* delta_norm;                // [d_v]
};

struct ModelWeights {
  Matrix embedding;                   // [V, D]; rows are looked up, whatever their format
  Weight head;                        // [V, D] or, on the concatenated lanes, [V, L*D]
  const float* final_norm = nullptr;  // [L, D] or [D]
  // [h/2] each, radians per position; null: not used
  const float* frequencies[kPlanRotaries] = {};
  std::vector<LayerWeights> layers;

  // The matrix of that role that products are made with; a layer's, or the head.
  Weight& weight(WeightRole role, int64_t layer, int64_t expert = 0) {
    return const_cast<Weight&>(static_cast<const ModelWeights&>(*this).weight(role, layer, expert));
  }
  const Weight& weight(WeightRole role, int64_t layer, int64_t expert = 0) const {
    if (role == WeightRole::kHead) return head;
    const LayerWeights& w = layers.at(layer);
    switch (role) {
      case WeightRole::kQ:
        return w.q;
      case WeightRole::kK:
        return w.k;
      case WeightRole::kV:
        return w.v;
      case WeightRole::kO:
        return w.o;
      case WeightRole::kGate:
        return w.gate;
      case WeightRole::kUp:
        return w.up;
      case WeightRole::kDown:
        return w.down;
      case WeightRole::kQDown:
        return w.q_down;
      case WeightRole::kKvDown:
        return w.kv_down;
      case WeightRole::kKUp:
        return w.k_up;
      case WeightRole::kVUp:
        return w.v_up;
      case WeightRole::kDeltaQkv:
        return w.delta_qkv;
      case WeightRole::kDeltaZ:
        return w.delta_z;
      case WeightRole::kDeltaGates:
        return w.delta_gates;
      case WeightRole::kDeltaOut:
        return w.delta_out;
      case WeightRole::kSharedGate:
        return w.shared_gate;
      case WeightRole::kSharedUp:
        return w.shared_up;
      case WeightRole::kSharedDown:
        return w.shared_down;
      case WeightRole::kRouter:
        return w.router;
      case WeightRole::kExpertGate:
        return of_expert(w.expert_gate, expert);
      case WeightRole::kExpertUp:
        return of_expert(w.expert_up, expert);
      case WeightRole::kExpertDown:
        return of_expert(w.expert_down, expert);
      default:
        throw std::invalid_argument("role: expected that of a matrix");
    }
  }

 private:
  static const Weight& of_expert(const std::vector<Weight>& each, int64_t expert) {
    if (expert < static_cast<int64_t>(each.size())) return each[expert];
    throw std::invalid_argument("weights: expected a matrix for every expert, got " +
                                std::to_string(each.size()));
  }
};

}  // namespace monolane
