#include "ops/forward.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "ops/attention.h"

namespace monolane {
namespace {

// Those that others own: the leader's tokens, what sequences keep, and what goes from rank to rank.
bool is_elsewhere(PlanBuffer which) {
  if (std::ranges::find(kPlanOutputs, which) != std::end(kPlanOutputs)) return true;
  switch (which) {
    case PlanBuffer::kTokens:
    case PlanBuffer::kKeyValue:
    case PlanBuffer::kState:
    case PlanBuffer::kStream:
    case PlanBuffer::kUnnormed:
    case PlanBuffer::kLogits:
      return true;
    default:
      return false;
  }
}

}  // namespace

Forward::Forward(Plan plan_, const Seat& seat, ModelWeights weights_, const Kernels& kernels_,
                 Activation activation_, Format kv_format, int slots)
    : plan(std::move(plan_)),
      weights(std::move(weights_)),
      kernels(kernels_),
      activation(activation_),
      exchange(plan, seat),
      adapters(plan, slots),
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
  for (int32_t i = 0; i < kPlanBuffers; ++i) {
    if (is_elsewhere(static_cast<PlanBuffer>(i))) continue;
    buffers[i] = std::make_unique<Arena>(floats(std::max<int64_t>(h.sizes[i], 1)));
  }
}

}  // namespace monolane
