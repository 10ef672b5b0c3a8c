// What the workers of a process share while tokens go forward through the layers: the plan,
// weights, what slots hold, what workers of other lanes said, and what phases leave for each other.
//
// Shape legend: T rows of a pass, L lanes, D hidden, F intermediate, H query heads, K KV heads,
// h head_dim, V vocabulary, S splits, E experts, k chosen of them, X inner width of one, Xs of what
// tokens share beside them; of latent attention Q and R latents, r turned, v a head's value; of a
// gated delta rule G key heads, U value heads, of widths d_k and d_v. All of one module.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi/pass.h"
#include "abi/plan.h"
#include "kernels/kernels.h"
#include "memory/arena.h"
#include "ops/adapters.h"
#include "ops/weights.h"
#include "ranks/exchange.h"
#include "state/sequences.h"

namespace monolane {

inline size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

// A place of the stream that drafters are shown: as it is before a layer. Of models with one lane.
struct Tap {
  int64_t phase;                // the first one of the layer
  std::unique_ptr<Arena> rows;  // [T, D] of a pass, by the leader
};

struct Forward {
  // Throws std::invalid_argument if plan, seat, weights and kernels do not fit together.
  Forward(Plan plan, const Seat& seat, ModelWeights weights, const Kernels& kernels,
          Activation activation, Format kv_format, int slots);

  int64_t index_of(const PlanPhase& phase) const { return &phase - plan.phases.data(); }
  Activation activation_of(const Matrix& matrix) const {
    return activation_for(matrix.format, activation);
  }

  const PlanModule& module(const PlanPhase& phase) const { return plan.module(phase); }

  // What the workers of a group share; who may touch what when is the plan's business. Shapes are
  // in plan/_phase.py. What goes from rank to rank is the exchange's.
  float* buffer(PlanBuffer which) const { return buffers[static_cast<size_t>(which)]->as<float>(); }

  const Plan plan;
  const ModelWeights weights;
  const Kernels& kernels;
  const Activation activation;  // where a matrix's format takes it
  Exchange exchange;
  Adapters adapters;
  Sequences sequences;
  KvCache& cache;
  RecurrentStates& states;
  Pass& pass;

  std::array<std::unique_ptr<Arena>, kPlanBuffers> buffers;  // null: it is not among these
  std::vector<Tap> taps = {};
};

}  // namespace monolane
