// The terms of a softmax over the scores of one query: their peak, and e^(score - peak) with the
// sum of all. Known before any value is looked at, so nothing is ever rescaled within a call.
#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/isa/vector.h"

namespace monolane::MONOLANE_ISA {

// What becomes of the product of a query and a key before the softmax.
struct ScoreRule {
  float scale;
  float cap;  // c: scores, scaled, become c tanh(score / c); 0: they stay

  void apply(float* scores, int64_t count) const {
    for (int64_t j = 0; j < count; ++j) scores[j] *= scale;
    cap_scores(scores, count);
  }
  void cap_scores(float* scores, int64_t count) const {
    if (cap == 0.0f) return;
    for (int64_t j = 0; j < count; ++j) scores[j] = cap * tanhf(scores[j] / cap);
  }
};

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
