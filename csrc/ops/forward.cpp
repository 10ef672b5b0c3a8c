#include "ops/forward.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace monolane {
namespace {

auto gate_up_of(const Kernels& kernels, GateActivation activation) {
  switch (activation) {
    case GateActivation::kGeluTanh:
      return kernels.gelu_tanh_times;
    case GateActivation::kClampedSwiglu:
      return kernels.clamped_swiglu;
    default:
      return kernels.silu_times;
  }
}

// Codes are made by the worker that has a group: a share must not begin or end amid one.
void check_cache_format(const Plan& plan, Format format) {
  const int64_t group = is_cached(format) ? column_step(format) : 0;
  bool whole = group > 0 && plan.header.head_dim % group == 0;
  for (const PlanPhase& phase : plan.phases) {
    if (phase.kind != PhaseKind::kQkv) continue;
    for (int32_t i = 0; i < phase.num_matrices && whole; ++i) {
      const PlanMatrix& matrix = phase.matrices[i];
      if (matrix.role == WeightRole::kQ) continue;
      for (int32_t w = 0; w < plan.header.workers; ++w) {
        whole = whole && plan.share(matrix.share, w).begin % group == 0;
      }
    }
  }
  if (!whole) throw std::invalid_argument("the plan is not one for this format of keys and values");
}

}  // namespace

Forward::Forward(Plan plan_, const Seat& seat, ModelWeights weights_, const Kernels& kernels_,
                 Activation activation_, Format kv_format, int slots)
    : plan(std::move(plan_)),
      weights(std::move(weights_)),
      kernels(kernels_),
      activation(activation_),
      gate_up(gate_up_of(kernels_, plan.header.activation)),
      exchange(plan, seat),
      sequences(plan, int64_t{plan.header.kv_heads} / seat.ranks * seat.rank,
                plan.header.kv_heads / seat.ranks, slots, kv_format),
      cache(sequences.cache),
      states(sequences.states),
      pass(exchange.pass()) {
  const PlanHeader& h = plan.header;
  if (h.schema != kPlanSchema || !h.leader || h.max_width > kPlanMixtureWidth ||
      h.chunk != kChunk || (states.any() && h.max_width > kPlanMaxWidth)) {
    throw std::invalid_argument("the plan is not one for this executor: build it for a CPU device");
  }
  check_cache_format(plan, kv_format);
  if (static_cast<int32_t>(weights.layers.size()) != h.layers) {
    throw std::invalid_argument("plan and weights have different numbers of layers");
  }
  const int64_t width = h.max_width;
  if (seat.ranks > 1) {  // only rank 0 knows what a slot will hold
    for (int slot = 0; slot < slots; ++slot) cache.reach(slot, h.context);
  }
  query = std::make_unique<Arena>(floats(width * h.heads * h.head_dim));
  attention = std::make_unique<Arena>(floats(h.splits * width * h.heads * (h.head_dim + 2)));
  hidden = std::make_unique<Arena>(floats(width * h.lanes * h.hidden_columns));
  routed = std::make_unique<Arena>(floats(width * std::max(h.experts, 1)));
  query_gate = std::make_unique<Arena>(floats(h.attention_gate ? width * h.heads * h.head_dim : 1));
  mixed = std::make_unique<Arena>(floats(std::max<int64_t>(width * mixed_columns(), 1)));
  int64_t values = 0;  // of all heads, that kOut reads
  for (const PlanPhase& phase : plan.phases) {
    if (phase.kind == PhaseKind::kValues) values = int64_t{h.heads} * phase.matrices[0].rows;
  }
  latents = std::make_unique<Arena>(floats(values > 0 ? width * latent_columns() : 1));
  const int64_t made = std::max(values, delta_columns());
  heads = std::make_unique<Arena>(floats(std::max<int64_t>(width * made, 1)));
}

}  // namespace monolane
