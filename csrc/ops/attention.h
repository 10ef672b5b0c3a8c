// What other operations take of attention.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/forward.h"

namespace monolane {

// Tokens whose attention to a chunk is asked for at once, at most. 24 queries are whole tiles of 8,
// 6 and 4, whose partial sums stay in the first-level cache.
inline int64_t attended_at_once(const PlanAttention& a) {
  return std::clamp<int64_t>(24 / (a.heads / a.kv_heads), 1, kMaxWidth);
}

// The first `columns` of what one head's attention makes of its splits, [columns]. Its sink, if it
// has one, is one more score, whose value is zero.
void merge_head(const Forward& f, const PlanPhase& phase, int64_t owner, int64_t head, int64_t t,
                int64_t columns, float* out);

}  // namespace monolane
