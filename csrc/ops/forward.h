// What the workers of a process share while tokens go forward through the layers: the plan,
// weights, what slots hold, what workers of other lanes said, and what phases leave for each other.
//
// Shape legend: T rows of a pass, L lanes, D hidden, F intermediate, H query heads, K KV heads,
// h head_dim, V vocabulary, S splits, E experts, k chosen of them, X inner width of one, Xs of what
// tokens share beside them; of latent attention Q and R latents, r turned, v a head's value; of a
// gated delta rule G key heads, U value heads, of widths d_k and d_v.
#pragma once

#include <cstdint>
#include <memory>

#include "abi/pass.h"
#include "abi/plan.h"
#include "kernels/kernels.h"
#include "memory/arena.h"
#include "ops/weights.h"
#include "ranks/exchange.h"
#include "state/sequences.h"

namespace monolane {

inline size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

struct Forward {
  // Throws std::invalid_argument if plan, seat, weights and kernels do not fit together.
  Forward(Plan plan, const Seat& seat, ModelWeights weights, const Kernels& kernels,
          Activation activation, Format kv_format, int slots);

  int64_t index_of(const PlanPhase& phase) const { return &phase - plan.phases.data(); }
  Activation activation_of(const Matrix& matrix) const {
    return activation_for(matrix.format, activation);
  }

  // Numbers of all value heads of a delta rule: of v, of z and of what they make.
  int64_t delta_columns() const {
    return int64_t{plan.header.delta_value_heads} * plan.header.delta_value;
  }
  // Where z and the gates b, a begin in a row of `mixed`, behind all q, all k and all v.
  int64_t mixed_z() const {
    const PlanHeader& h = plan.header;
    return 2 * int64_t{h.delta_key_heads} * h.delta_key + delta_columns();
  }
  int64_t mixed_gates() const { return mixed_z() + delta_columns(); }
  int64_t mixed_columns() const {
    return mixed_gates() + 2 * int64_t{plan.header.delta_value_heads};
  }
  int64_t latent_columns() const {
    return int64_t{plan.header.query_latent} + plan.header.head_dim;
  }

  const Plan plan;
  const ModelWeights weights;
  const Kernels& kernels;
  const Activation activation;  // where a matrix's format takes it
  void (*const gate_up)(const float* gate, const float* up, int64_t count, float* out);
  Exchange exchange;
  Sequences sequences;
  KvCache& cache;
  DeltaStates& states;
  Pass& pass;

  // Shared by the workers of a group; who may touch what when is the plan's business.
  std::unique_ptr<Arena> query;       // [L, T, H/L*h]
  std::unique_ptr<Arena> attention;   // [L, S, T, H/L, h + 2]
  std::unique_ptr<Arena> hidden;      // [L, T, F/L]; of a mixture [1, T, k*X + Xs]
  std::unique_ptr<Arena> routed;      // [1, T, E]
  std::unique_ptr<Arena> latents;     // [1, T, Q + R + r]
  std::unique_ptr<Arena> heads;       // [1, T, H*v], or [1, T, U*d_v]
  std::unique_ptr<Arena> query_gate;  // [L, T, H/L*h]
  std::unique_ptr<Arena> mixed;       // [1, T, 2G*d_k + 2U*d_v + 2U]
};

}  // namespace monolane
