// Tokens by their logits, the most probable first.
#pragma once

#include <cmath>
#include <cstdint>

namespace monolane {

// Whether one ranks before another: of equal ones the first, and what is no number last. An order
// of all, as sorting needs it: with one that says of NaN that it is neither before nor behind,
// std::sort may walk beyond the end.
struct Before {
  const float* x;

  bool operator()(int32_t a, int32_t b) const {
    if (x[a] > x[b]) return true;
    if (x[a] < x[b]) return false;
    const bool none = std::isnan(x[a]);
    return none != std::isnan(x[b]) ? !none : a < b;
  }
};

}  // namespace monolane
