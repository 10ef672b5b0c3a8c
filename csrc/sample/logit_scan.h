// Loops over all logits of a row, for sampler.cpp. One thread runs them while all others wait and
// the memory rests, so they are vectors: a plain loop over 49,152 logits takes 40 us, these 2 to 5.
//
// NaN: compares with nothing, so but for `peak_of` it is never found.
#pragma once

#include <cstdint>

namespace monolane {

constexpr int32_t kScanBlock = 64;  // logits: four vectors of 16 side by side

// The largest of `start` and x; NaN if any of them is.
float peak_of(const float* x, int32_t count, float start);

// The first i from `from` on with x[i] == value; `count` if there is none.
int32_t find_equal(const float* x, int32_t from, int32_t count, float value);

// Leaves each i with low <= x[i] <= high, ascending, and returns how many there are. `found` has
// room for `count`.
int32_t collect(const float* x, int32_t count, float low, float high, int32_t* found);

// Whether any x[i] + more, in float, or x[i] + more[i], is not below `floor`;
// i < count <= kScanBlock.
bool any_reaches(const float* x, int32_t count, float more, float floor);
bool any_reaches(const float* x, int32_t count, const float* more, float floor);

void divide_by(const float* x, float by, int32_t count, float* out);

// out[i] = exp(x[i] - peak), the difference in float, the exponential in double with an error of
// 4e-16 of it at most, and exp(-700) for what is less. No x[i] exceeds `peak`.
void exp_below(const float* x, int32_t count, float peak, double* out);

// `gumbel_bound` of tokens first .. first + kScanBlock - 1.
void bound_noise(uint64_t seed, uint32_t position, uint32_t first, float* bounds);

}  // namespace monolane
