#include "state/recurrent_states.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace monolane {

RecurrentStates::RecurrentStates(const std::vector<PlanModule>& modules, int64_t slots)
    : positions_(slots, 0) {
  for (const PlanModule& module : modules) {
    const Module& x = modules_.emplace_back(Module{module.state, slot_floats_});
    slot_floats_ += x.parts * x.floats(kPlanMaxWidth);
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

void RecurrentStates::copy(int64_t source, int64_t target) {
  if (any()) {
    float* numbers = memory_->as<float>();
    std::memcpy(numbers + target * slot_floats_, numbers + source * slot_floats_,
                static_cast<size_t>(slot_floats_) * sizeof(float));
  }
  positions_[target] = positions_[source];
}

int64_t RecurrentStates::bytes_with(int64_t tokens) const {
  int64_t floats = 0;
  for (const Module& x : modules_) floats += x.parts * x.floats(tokens);
  return floats * static_cast<int64_t>(sizeof(float));
}

template <typename Move>
void RecurrentStates::for_parts(int64_t slot, int64_t tokens, Move move) const {
  for (size_t i = 0; i < modules_.size(); ++i) {
    for (int64_t part = 0; part < modules_[i].parts; ++part) {
      move(state(slot, static_cast<int64_t>(i), part),
           static_cast<size_t>(modules_[i].floats(tokens)) * sizeof(float));
    }
  }
}

void RecurrentStates::save_tail(int64_t slot, int64_t end, char* tail) const {
  for_parts(slot, end - positions_[slot], [&](const float* inside, size_t bytes) {
    std::memcpy(tail, inside, bytes);
    tail += bytes;
  });
}

bool RecurrentStates::takes_tail(int64_t end, int64_t bytes) const {
  if (!any()) return bytes == 0;
  const int64_t tokens = bytes < bytes_with(0) ? -1 : tokens_of(bytes);
  return tokens >= 0 && tokens <= std::min<int64_t>(kPlanMaxWidth, end) &&
         bytes_with(tokens) == bytes;
}

void RecurrentStates::restore_tail(int64_t slot, int64_t end, int64_t bytes, const char* tail) {
  if (!any()) return;
  const int64_t tokens = tokens_of(bytes);
  for_parts(slot, tokens, [&](float* inside, size_t size) {
    std::memcpy(inside, tail, size);
    tail += size;
  });
  positions_[slot] = end - tokens;
}

}  // namespace monolane
