#include "state/delta_states.h"

#include <new>
#include <stdexcept>
#include <string>

namespace monolane {

DeltaStates::DeltaStates(const Plan& plan, int64_t slots)
    : sizes_(plan.header), heads_(plan.header.delta_key_heads), positions_(slots, 0) {
  places_.assign(plan.header.layers, -1);
  for (const PlanPhase& phase : plan.phases) {
    if (phase.kind == PhaseKind::kDelta) places_[phase.layer] = layers_++;
  }
  if (!any()) return;
  const int64_t each = sizes_.state + kept_rows() * sizes_.columns;
  const size_t bytes = static_cast<size_t>(slots * parts() * each) * sizeof(float);
  try {
    memory_ = std::make_unique<Arena>(bytes, -1, 0, false);
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("expected room for the states of " + std::to_string(slots) +
                             " sequences, got a refusal of the system to " + std::to_string(bytes) +
                             " bytes; use fewer sequences");
  }
}

void DeltaStates::copy(int64_t source, int64_t target) {
  const size_t bytes = any() ? memory_->bytes() / positions_.size() : 0;
  if (bytes > 0) std::memcpy(part(target, 0), part(source, 0), bytes);
  positions_[target] = positions_[source];
}

int64_t DeltaStates::saved_bytes(int64_t inputs) const {
  const int64_t each = sizes_.state + (sizes_.before + inputs) * sizes_.columns;
  return parts() * each * static_cast<int64_t>(sizeof(float));
}

void DeltaStates::save(int64_t slot, int64_t inputs, char* out) const {
  const size_t bytes = any() ? static_cast<size_t>(saved_bytes(inputs) / parts()) : 0;
  for (int64_t i = 0; i < parts(); ++i, out += bytes) std::memcpy(out, part(slot, i), bytes);
}

bool DeltaStates::saves(int64_t bytes, int64_t end) const {
  if (!any()) return bytes == 0;
  const int64_t inputs = bytes < saved_bytes(0) ? -1 : saved_inputs(bytes);
  return inputs >= 0 && inputs <= std::min<int64_t>(kPlanMaxWidth, end) &&
         saved_bytes(inputs) == bytes;
}

void DeltaStates::restore(int64_t slot, int64_t end, int64_t bytes, const char* saved) {
  const size_t each = any() ? static_cast<size_t>(bytes / parts()) : 0;
  for (int64_t i = 0; i < parts(); ++i, saved += each) std::memcpy(part(slot, i), saved, each);
  if (any()) positions_[slot] = end - saved_inputs(bytes);
}

}  // namespace monolane
