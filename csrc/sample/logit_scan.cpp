#include "sample/logit_scan.h"

#include <bit>

#include "kernels/isa/clones.h"
#include "sample/gumbel.h"

namespace monolane {

namespace {

// The larger one; NaN takes the place of a peak, and nothing takes its.
[[gnu::always_inline]] inline float higher(float peak, float x) {
  return (x > peak) | (x != x) ? x : peak;
}

}  // namespace

MONOLANE_CLONES float peak_of(const float* x, int32_t count, float start) {
  float peaks[kScanBlock];
  for (int32_t s = 0; s < kScanBlock; ++s) peaks[s] = start;
  int32_t i = 0;
  for (; i + kScanBlock <= count; i += kScanBlock) {
    for (int32_t s = 0; s < kScanBlock; ++s) peaks[s] = higher(peaks[s], x[i + s]);
  }
  float peak = peaks[0];
  for (int32_t s = 1; s < kScanBlock; ++s) peak = higher(peak, peaks[s]);
  for (; i < count; ++i) peak = higher(peak, x[i]);
  return peak;
}

MONOLANE_CLONES int32_t find_equal(const float* x, int32_t from, int32_t count, float value) {
  for (; from + kScanBlock <= count; from += kScanBlock) {
    int32_t found = 0;
    for (int32_t s = 0; s < kScanBlock; ++s) found |= x[from + s] == value;
    if (found != 0) break;
  }
  while (from < count && !(x[from] == value)) ++from;
  return from;
}

// Blocks without any are passed over; in the others a condition per logit would be mispredicted.
MONOLANE_CLONES int32_t collect(const float* x, int32_t count, float low, float high,
                                int32_t* found) {
  int32_t size = 0;
  for (int32_t at = 0; at < count; at += kScanBlock) {
    const int32_t end = at + kScanBlock < count ? at + kScanBlock : count;
    int32_t any = 0;
    for (int32_t i = at; i < end; ++i) any |= (x[i] >= low) & (x[i] <= high);
    if (any == 0) continue;
    for (int32_t i = at; i < end; ++i) {
      found[size] = i;
      size += (x[i] >= low) & (x[i] <= high);
    }
  }
  return size;
}

MONOLANE_CLONES bool any_reaches(const float* x, int32_t count, float more, float floor) {
  int32_t found = 0;
  for (int32_t i = 0; i < count; ++i) found |= !(x[i] + more < floor);
  return found != 0;
}

MONOLANE_CLONES bool any_reaches(const float* x, int32_t count, const float* more, float floor) {
  int32_t found = 0;
  for (int32_t i = 0; i < count; ++i) found |= !(x[i] + more[i] < floor);
  return found != 0;
}

MONOLANE_CLONES void divide_by(const float* x, float by, int32_t count, float* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = x[i] / by;
}

// Below this nothing is left of exp beside the 1 of the peak.
constexpr float kNothing = -700.0f;

// exp(x), kNothing <= x <= 0, by 2^n times a Taylor series of what is left, at most ln(2) / 2, to
// its 13th power.
static inline double exp_of(double x) {
  constexpr double kLog2e = 1.4426950408889634, kShift = 0x1.8p52;
  constexpr double kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;
  const double shifted = x * kLog2e + kShift;  // n in its lowest bits
  const double n = shifted - kShift;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1.0 / 6227020800.0;
  sum = sum * r + 1.0 / 479001600.0;
  sum = sum * r + 1.0 / 39916800.0;
  sum = sum * r + 1.0 / 3628800.0;
  sum = sum * r + 1.0 / 362880.0;
  sum = sum * r + 1.0 / 40320.0;
  sum = sum * r + 1.0 / 5040.0;
  sum = sum * r + 1.0 / 720.0;
  sum = sum * r + 1.0 / 120.0;
  sum = sum * r + 1.0 / 24.0;
  sum = sum * r + 1.0 / 6.0;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const uint64_t exponent = std::bit_cast<uint64_t>(shifted) << 52;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(sum) + exponent);
}

MONOLANE_CLONES void exp_below(const float* x, int32_t count, float peak, double* out) {
  constexpr int32_t kBlock = 16;
  int32_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    // In a loop of its own: a condition would keep the compiler from making vectors of the next.
    float below[kBlock];
    for (int32_t s = 0; s < kBlock; ++s) {
      const float found = x[i + s] - peak;
      below[s] = found < kNothing ? kNothing : found;
    }
    for (int32_t s = 0; s < kBlock; ++s) out[i + s] = exp_of(below[s]);
  }
  for (; i < count; ++i) out[i] = exp_of(x[i] - peak < kNothing ? kNothing : x[i] - peak);
}

MONOLANE_CLONES void bound_noise(uint64_t seed, uint32_t position, uint32_t first, float* bounds) {
  for (uint32_t s = 0; s < kScanBlock; ++s) {
    bounds[s] = gumbel_bound(philox_word(seed, position, first + s));
  }
}

}  // namespace monolane
