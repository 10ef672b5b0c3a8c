// What an MLP makes of its gate and its other half.
#pragma once

#include <cstdint>

#include "abi/plan_abi.h"
#include "kernels/kernels.h"

namespace monolane {

// out = activation(gate) * up, or what stands for that: see model/_config.py.
using GateUp = void (*)(const float* gate, const float* up, int64_t count, float* out);

// Whether there is a gate; else the other half's rectified square is what the last matrix reads.
inline bool is_gated(GateActivation activation) {
  return activation != GateActivation::kReluSquared;
}

inline GateUp gate_up_of(const Kernels& kernels, GateActivation activation) {
  switch (activation) {
    case GateActivation::kGeluTanh:
      return kernels.gelu_tanh_times;
    case GateActivation::kClampedSwiglu:
      return kernels.clamped_swiglu;
    default:
      return kernels.silu_times;
  }
}

}  // namespace monolane
