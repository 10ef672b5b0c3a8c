// What other operations take of attention.
#pragma once

#include <cstdint>

#include "ops/forward.h"

namespace monolane {

// The first `columns` of what one head's attention makes of its splits, [columns]. Its sink is one
// more score, whose value is zero; null: there is none.
void merge_head(const Forward& f, const float* sinks, int64_t owner, int64_t head, int64_t t,
                int64_t columns, float* out);

}  // namespace monolane
