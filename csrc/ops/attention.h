// What other operations take of attention.
#pragma once

#include <cstdint>

#include "ops/forward.h"

namespace monolane {

// Throws std::invalid_argument if keys and values cannot be stored in a format with these shares.
void check_cache_format(const Plan& plan, Format format);

// Multiplies queries of row t of the pass, [count], by what grows with their position, if anything.
void temper(const Forward& f, const PlanAttention& a, int64_t t, float* y, int64_t count);

// The first `columns` of what one head's attention makes of its splits, [columns]. Its sink, if it
// has one, is one more score, whose value is zero.
void merge_head(const Forward& f, const PlanPhase& phase, int64_t owner, int64_t head, int64_t t,
                int64_t columns, float* out);

}  // namespace monolane
