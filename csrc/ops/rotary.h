// Rotary positions.
#pragma once

#include <cstdint>

#include "ops/worker.h"

namespace monolane {

// Turns rows first .. first + count - 1 of a lane's heads, which hold whole rotary pairs, or of the
// part of heads that turns, where attention is latent. `t`: the row of the pass.
void rotate(const Forward& f, const Worker& w, PlanRotary rotary, float* y, int64_t t,
            int64_t first, int64_t count);

}  // namespace monolane
