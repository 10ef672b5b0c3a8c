// Loops over the elements of activations, compiled for each instruction set; see clones.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace monolane {

void add_to(float* x, const float* y, int64_t count);
// Adds `terms` vectors, one after another: x is read and written once for all of them.
void add_all_to(float* x, const float* const* y, int64_t terms, int64_t count);
void add_scaled_to(float* x, const float* y, float scale, int64_t count);
void scale_by(float* x, float scale, int64_t count);
// out[i] = max(x[i], 0)^2; a NaN stays one.
void relu_squared(const float* x, int64_t count, float* out);

// log(1 + e^x), by the branch that cannot overflow.
inline float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }

// out[i] = x[i] less the mean of x, which is summed in 16 strands; out may be x.
void centre(const float* x, int64_t count, float* out);

// The sum of x[i] * y[i], in 16 strands that are added up at last: the same bits everywhere.
float dot(const float* x, const float* y, int64_t count);

// y [T, count] += bias [count], or nothing where there is none.
void add_bias(float* y, const float* bias, int64_t width, int64_t count);

}  // namespace monolane
