// How an adapter's low-rank update joins a product. A worker has all that a phase's matrices read,
// so it makes A x whole and for itself, and B (A x) of its own rows: that is a little arithmetic
// twice, and no wait more. Each sum is over one row and one token in float32, whatever else is in
// the pass, as all products are.
#pragma once

#include <cstdint>

#include "ops/worker.h"

namespace monolane {

// Makes A x of a phase's inputs of a lane, x [T, columns], for the rows that have an adapter.
void lower_inputs(const Forward& f, const Worker& w, const PlanPhase& phase, const float* x,
                  int64_t columns, int64_t lane, int64_t width);

// Adds B (A x) to rows first .. first + count - 1 of a lane's products, y [T, count].
void add_adapted(const Forward& f, const Worker& w, const PlanPhase& phase, int64_t matrix,
                 int64_t lane, int64_t first, int64_t count, float* y, int64_t stride);

}  // namespace monolane
