#include "kernels/elementwise.h"

#include "kernels/isa/clones.h"

namespace monolane {

MONOLANE_CLONES void add_to(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

MONOLANE_CLONES void add_all_to(float* x, const float* const* y, int64_t terms, int64_t count) {
  if (terms == 0) return;
  if (terms == 1) return add_to(x, y[0], count);
  constexpr int64_t kBlock = 32;  // sums that stay in registers
  const float *first = y[0], *last = y[terms - 1];
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    float sums[kBlock];
    for (int64_t k = 0; k < kBlock; ++k) sums[k] = x[i + k] + first[i + k];
    for (int64_t j = 1; j + 1 < terms; ++j) {
      for (int64_t k = 0; k < kBlock; ++k) sums[k] += y[j][i + k];
    }
    for (int64_t k = 0; k < kBlock; ++k) x[i + k] = sums[k] + last[i + k];
  }
  for (; i < count; ++i) {
    for (int64_t j = 0; j < terms; ++j) x[i] += y[j][i];
  }
}

MONOLANE_CLONES void add_scaled_to(float* x, const float* y, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += scale * y[i];
}

MONOLANE_CLONES void scale_by(float* x, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= scale;
}

MONOLANE_CLONES void centre(const float* x, int64_t count, float* out) {
  constexpr int64_t kStrands = 16;
  float strands[kStrands] = {};
  int64_t i = 0;
  for (; i + kStrands <= count; i += kStrands) {
    for (int64_t s = 0; s < kStrands; ++s) strands[s] += x[i + s];
  }
  for (; i < count; ++i) strands[i % kStrands] += x[i];
  float sum = 0;
  for (const float strand : strands) sum += strand;
  const float mean = sum / static_cast<float>(count);
  for (int64_t k = 0; k < count; ++k) out[k] = x[k] - mean;
}

MONOLANE_CLONES void relu_squared(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float positive = x[i] < 0.0f ? 0.0f : x[i];
    out[i] = positive * positive;
  }
}

MONOLANE_CLONES float dot(const float* x, const float* y, int64_t count) {
  constexpr int64_t kStrands = 16;
  float strands[kStrands] = {};
  int64_t i = 0;
  for (; i + kStrands <= count; i += kStrands) {
    for (int64_t s = 0; s < kStrands; ++s) strands[s] += x[i + s] * y[i + s];
  }
  for (; i < count; ++i) strands[i % kStrands] += x[i] * y[i];
  float sum = 0;
  for (const float strand : strands) sum += strand;
  return sum;
}

MONOLANE_CLONES void add_bias(float* y, const float* bias, int64_t width, int64_t count) {
  if (bias == nullptr) return;
  for (int64_t t = 0; t < width; ++t, y += count) {
    for (int64_t i = 0; i < count; ++i) y[i] += bias[i];
  }
}

}  // namespace monolane
