// What the leader takes of the head.
#pragma once

#include <cstdint>

#include "ops/forward.h"

namespace monolane {

// What the head reads of row `t`, [D]: the normed sum of the lanes' streams, or the mean of their
// normed ones, from what was offered.
void merge_lanes(const Forward& f, int64_t t, float* out);

}  // namespace monolane
