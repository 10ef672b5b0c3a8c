#include "state/delta_states.h"

#include <new>
#include <stdexcept>
#include <string>

namespace monolane {

DeltaStates::DeltaStates(const Plan& plan, int64_t slots) : positions_(slots, 0) {
  layers_.assign(plan.header.layers, {DeltaSizes(PlanDelta{}), 0, 0});
  for (const PlanModule& module : plan.modules) {
    if (module.delta.key_heads == 0) continue;
    Layer& x = layers_[module.layer];
    x = {DeltaSizes(module.delta), module.delta.key_heads, slot_floats_};
    slot_floats_ += x.heads * x.head_floats();
  }
  if (!any()) return;
  const size_t bytes = static_cast<size_t>(slots * slot_floats_) * sizeof(float);
  try {
    memory_ = std::make_unique<Arena>(bytes, -1, 0, false);
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("expected room for the states of " + std::to_string(slots) +
                             " sequences, got a refusal of the system to " + std::to_string(bytes) +
                             " bytes; use fewer sequences");
  }
}

void DeltaStates::copy(int64_t source, int64_t target) {
  if (any()) {
    float* numbers = memory_->as<float>();
    std::memcpy(numbers + target * slot_floats_, numbers + source * slot_floats_,
                static_cast<size_t>(slot_floats_) * sizeof(float));
  }
  positions_[target] = positions_[source];
}

int64_t DeltaStates::saved_bytes(int64_t inputs) const {
  int64_t floats = 0;
  for (const Layer& x : layers_) floats += x.heads * x.saved_floats(inputs);
  return floats * static_cast<int64_t>(sizeof(float));
}

template <typename Move>
void DeltaStates::for_heads(int64_t slot, int64_t inputs, Move move) const {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const Layer& x = layers_[layer];
    for (int64_t head = 0; head < x.heads; ++head) {
      move(state(slot, static_cast<int64_t>(layer), head),
           static_cast<size_t>(x.saved_floats(inputs)) * sizeof(float));
    }
  }
}

void DeltaStates::save(int64_t slot, int64_t inputs, char* out) const {
  for_heads(slot, inputs, [&](const float* inside, size_t bytes) {
    std::memcpy(out, inside, bytes);
    out += bytes;
  });
}

bool DeltaStates::saves(int64_t bytes, int64_t end) const {
  if (!any()) return bytes == 0;
  const int64_t inputs = bytes < saved_bytes(0) ? -1 : saved_inputs(bytes);
  return inputs >= 0 && inputs <= std::min<int64_t>(kPlanMaxWidth, end) &&
         saved_bytes(inputs) == bytes;
}

void DeltaStates::restore(int64_t slot, int64_t end, int64_t bytes, const char* saved) {
  if (!any()) return;
  const int64_t inputs = saved_inputs(bytes);
  for_heads(slot, inputs, [&](float* inside, size_t size) {
    std::memcpy(inside, saved, size);
    saved += size;
  });
  positions_[slot] = end - inputs;
}

}  // namespace monolane
