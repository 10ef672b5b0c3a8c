// Rotary positions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/worker.h"

namespace monolane {

// Angles of a row and a rotary at most.
inline int64_t most_angles(const PlanHeader& h) {
  int32_t dim = 0;
  for (const PlanRotaryTable& table : h.rotaries) dim = std::max(dim, table.dim);
  return dim / 2;
}

// Where the angles of row t begin in a worker's `cosine` and `sine`.
inline int64_t angles_at(const PlanHeader& h, PlanRotary rotary, int64_t t) {
  return (static_cast<int64_t>(rotary) * h.max_width + t) * most_angles(h);
}

// Turns rows first .. first + count - 1 of a lane's heads, which hold whole rotary pairs, or of the
// part of heads that turns, where attention is latent. `t`: the row of the pass.
void rotate(const Forward& f, const Worker& w, const PlanPhase& phase, float* y, int64_t t,
            int64_t first, int64_t count);

}  // namespace monolane
