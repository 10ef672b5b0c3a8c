// The terms of a softmax over the scores of one query: their peak, and e^(score - peak) with the
// sum of all. Known before any value is looked at, so nothing is ever rescaled within a call.
#pragma once

#include <cstdint>

#include "kernels/isa/vector.h"

namespace monolane::MONOLANE_ISA {

static inline float peak_of(const float* scores, int64_t count) {
  Floats peak = splat(-__builtin_inff());
  int64_t j = 0;
  for (; j + kElements <= count; j += kElements) peak = max(load(scores + j), peak);
  float top = max_element(peak);
  for (; j < count; ++j) top = scores[j] > top ? scores[j] : top;
  return top;
}

// scores[j] = e^(scores[j] - peak), and their sum: each element of a vector adds its own in the
// order of j, then the tree adds the elements.
// If all scores are -inf there is nothing to subtract, and every term is zero.
static inline float exponentials(float* scores, int64_t count, float peak) {
  const Floats shift = splat(peak == -__builtin_inff() ? 0.0f : peak);
  Floats total = zero();
  int64_t j = 0;
  for (; j + kElements <= count; j += kElements) {
    const Floats e = exp(sub(load(scores + j), shift));
    store(scores + j, e);
    total = add(total, e);
  }
  if (j < count) {
    const int64_t n = count - j;
    store_first(scores + j, exp(sub(load_first(scores + j, n), shift)), n);
    total = add(total, load_first(scores + j, n));
  }
  return sum(total);
}

}  // namespace monolane::MONOLANE_ISA
