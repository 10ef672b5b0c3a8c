#include "kernels/delta_step.h"

#include <algorithm>

#include "kernels/isa/clones.h"

namespace monolane {

MONOLANE_CLONES void sum_over_tokens(const float* x, int64_t stride, const float* taps,
                                     int64_t tap_stride, int64_t kernel, int64_t channels,
                                     float* out) {
  std::fill_n(out, channels, 0.0f);
  for (int64_t j = 0; j < kernel; ++j, x += stride, taps += tap_stride) {
    for (int64_t c = 0; c < channels; ++c) out[c] += x[c] * taps[c];
  }
}

// In blocks of columns, whose sums stay in registers and whose part of the state in the first-level
// cache from the first time through its rows to the second.
MONOLANE_CLONES void delta_step(float* state, int64_t key, int64_t value, const float* keep,
                                int64_t keep_step, float beta, const float* q, const float* k,
                                const float* v, float* out) {
  constexpr int64_t kBlock = 32;
  int64_t first = 0;
  for (; first + kBlock <= value; first += kBlock) {
    float known[kBlock] = {}, said[kBlock] = {}, added[kBlock];
    for (int64_t i = 0; i < key; ++i) {
      float* s = state + i * value + first;
      const float kept = keep[i * keep_step];
      for (int64_t c = 0; c < kBlock; ++c) {
        s[c] *= kept;
        known[c] += k[i] * s[c];
      }
    }
    for (int64_t c = 0; c < kBlock; ++c) added[c] = beta * (v[first + c] - known[c]);
    for (int64_t i = 0; i < key; ++i) {
      float* s = state + i * value + first;
      for (int64_t c = 0; c < kBlock; ++c) {
        s[c] += k[i] * added[c];
        said[c] += q[i] * s[c];
      }
    }
    for (int64_t c = 0; c < kBlock; ++c) out[first + c] = said[c];
  }
  for (int64_t c = first; c < value; ++c) {  // the same, a column at a time
    float known = 0, said = 0;
    for (int64_t i = 0; i < key; ++i) {
      state[i * value + c] *= keep[i * keep_step];
      known += k[i] * state[i * value + c];
    }
    const float added = beta * (v[c] - known);
    for (int64_t i = 0; i < key; ++i) {
      state[i * value + c] += k[i] * added;
      said += q[i] * state[i * value + c];
    }
    out[c] = said;
  }
}

}  // namespace monolane
