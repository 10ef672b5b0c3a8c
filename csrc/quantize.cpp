// Weights to int8 and int4 codes. Plain code: it runs once per checkpoint, not per token, and one
// source of bits for all machines is worth more here than speed.
#include <cmath>
#include <stdexcept>
#include <string>

#include "half.h"
#include "kernels.h"

namespace monolane {
namespace {

float element(Format from, const void* x, int64_t i) {
  if (from == Format::kF32) return static_cast<const float*>(x)[i];
  const uint16_t half = static_cast<const uint16_t*>(x)[i];
  return from == Format::kBF16 ? bf16_to_float(half) : f16_to_float(half);
}

struct Group {
  int codes[kGroup];
  uint16_t scale;  // float16
  double error;    // sum of squares
};

// Codes in [lowest, highest] for one choice of scale.
Group encode(const float* x, float scale, int lowest, int highest) {
  Group group{{}, float_to_f16(scale), 0.0};
  const float rounded = f16_to_float(group.scale);
  if (!std::isfinite(rounded)) {
    throw std::invalid_argument("expected finite weights whose group scale fits float16, got " +
                                std::to_string(scale));
  }
  for (int i = 0; i < kGroup; ++i) {
    const float ideal = rounded == 0.0f ? 0.0f : std::nearbyint(x[i] / rounded);
    const float code =
        std::fmin(std::fmax(ideal, static_cast<float>(lowest)), static_cast<float>(highest));
    group.codes[i] = static_cast<int>(code);
    const double miss = double{x[i]} - double{rounded} * double{code};
    group.error += miss * miss;
  }
  return group;
}

float largest(const float* x) {
  float most = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    if (std::isnan(x[i])) return x[i];  // to be refused as a scale
    if (std::fabs(x[i]) > std::fabs(most)) most = x[i];
  }
  return most;
}

Group encode_i8(const float* x) { return encode(x, std::fabs(largest(x)) / 127.0f, -127, 127); }

Group encode_i4(const float* x) {
  const float most = largest(x);
  const Group even = encode(x, std::fabs(most) / 7.0f, -8, 7);
  const Group skewed = encode(x, most / -8.0f, -8, 7);
  return skewed.error < even.error ? skewed : even;
}

void put(const Group& group, Format to, uint8_t* out) {
  for (int i = 0; to == Format::kI8 && i < kGroup; ++i) {
    out[i] = static_cast<uint8_t>(static_cast<int8_t>(group.codes[i]));
  }
  for (int i = 0; to == Format::kI4 && i < kGroup / 2; ++i) {
    out[i] = static_cast<uint8_t>((group.codes[i] + 8) | ((group.codes[i + 16] + 8) << 4));
  }
}

}  // namespace

void quantize_rows(Format to, Format from, const void* x, int64_t rows, int64_t cols, void* values,
                   uint16_t* scales) {
  const int64_t group_bytes = row_bytes(to, kGroup);
  for (int64_t g = 0; g < rows * cols / kGroup; ++g) {
    float group[kGroup];
    for (int i = 0; i < kGroup; ++i) group[i] = element(from, x, g * kGroup + i);
    const Group best = to == Format::kI8 ? encode_i8(group) : encode_i4(group);
    put(best, to, static_cast<uint8_t*>(values) + g * group_bytes);
    scales[g] = best.scale;
  }
}

}  // namespace monolane
