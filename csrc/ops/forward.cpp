#include "ops/forward.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace monolane {
namespace {

// Codes are made by the worker that has a group: a share must not begin or end amid one.
void check_cache_format(const Plan& plan, Format format) {
  const int64_t group = is_cached(format) ? column_step(format) : 0;
  bool whole = group > 0;
  for (const PlanModule& module : plan.modules) {
    whole = whole && module.attention.head_dim % group == 0;
  }
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

// Those that are of one rank alone, and not of one sequence.
constexpr PlanBuffer kShared[] = {
    PlanBuffer::kQuery,   PlanBuffer::kAttention, PlanBuffer::kHidden,    PlanBuffer::kRouted,
    PlanBuffer::kLatents, PlanBuffer::kHeads,     PlanBuffer::kQueryGate, PlanBuffer::kMixed};

}  // namespace

Forward::Forward(Plan plan_, const Seat& seat, ModelWeights weights_, const Kernels& kernels_,
                 Activation activation_, Format kv_format, int slots)
    : plan(std::move(plan_)),
      weights(std::move(weights_)),
      kernels(kernels_),
      activation(activation_),
      exchange(plan, seat),
      sequences(plan, seat.rank, seat.ranks, slots, kv_format),
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
  if (seat.ranks > 1) {  // only rank 0 knows what a slot will hold
    for (int slot = 0; slot < slots; ++slot) cache.reach(slot, h.context);
  }
  for (const PlanBuffer which : kShared) {
    const size_t place = static_cast<size_t>(which);
    buffers[place] = std::make_unique<Arena>(floats(std::max<int64_t>(h.sizes[place], 1)));
  }
}

}  // namespace monolane
