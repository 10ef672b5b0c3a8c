// Weights to int8 and int4 codes, as plain loops over a group that compilers vectorise: one source
// of bits for all machines is worth more here than intrinsics, since this runs once per load.
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/isa/clones.h"
#include "kernels/isa/half.h"
#include "kernels/kernels.h"

// Inlined, so that each clone compiles it for its own instruction set.
#define MONOLANE_PART static inline __attribute__((always_inline))

namespace monolane {
namespace {

// One group under one choice of scale.
struct Group {
  float codes[kGroup];  // whole numbers
  uint16_t scale;       // float16
  double error;         // sum of squares
};

MONOLANE_CLONES void widen_bf16(const uint16_t* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(x[i]);
}

// Row as floats; `scratch` holds a row.
const float* floats_of(Format from, const void* x, int64_t cols, float* scratch) {
  if (from == Format::kF32) return static_cast<const float*>(x);
  const uint16_t* halves = static_cast<const uint16_t*>(x);
  if (from == Format::kBf16) {
    widen_bf16(halves, cols, scratch);
  } else {
    for (int64_t i = 0; i < cols; ++i) scratch[i] = f16_to_float(halves[i]);
  }
  return scratch;
}

[[noreturn]] void refuse(float scale) {
  throw std::invalid_argument("expected finite weights whose group scale fits float16, got " +
                              std::to_string(scale));
}

// The number of largest size, the first of equals; NaN if there is one. The bits of floats >= 0
// order like the floats, NaN above all, and that loop vectorises.
MONOLANE_PART float largest(const float* x) {
  uint32_t most = 0;
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t size = float_bits(x[i]) & 0x7FFFFFFFu;
    most = size > most ? size : most;
  }
  int first = 0;
  while ((float_bits(x[first]) & 0x7FFFFFFFu) != most) ++first;
  return x[first];
}

// Codes in [lowest, highest] for one choice of scale. A code's ideal is below 2^22 in size: scales
// are max |x| / 8 or smaller fractions of it, and rounding to float16 at most halves them. A scale
// that is not finite stays so, and the codes are some: what they mean is NaN.
MONOLANE_PART void encode(const float* x, float scale, float lowest, float highest, Group* group) {
  group->scale = float_to_f16(scale);
  const float rounded = f16_to_float(group->scale);
  const float divisor = rounded == 0.0f ? 1.0f : rounded;
  const float none = rounded == 0.0f ? 0.0f : 1.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float ideal = x[i] * none / divisor;
    const float nearest = (ideal + 0x1.8p23f) - 0x1.8p23f;  // ties to even
    const float above = nearest > lowest ? nearest : lowest;
    group->codes[i] = above < highest ? above : highest;
  }
}

// In eight sums, which a vector can hold, and then one after the other.
MONOLANE_PART void add_error(const float* x, Group* group) {
  const double rounded = f16_to_float(group->scale);
  double sums[8] = {};
  for (int i = 0; i < kGroup; i += 8) {
    for (int j = 0; j < 8; ++j) {
      const double miss = double{x[i + j]} - rounded * double{group->codes[i + j]};
      sums[j] += miss * miss;
    }
  }
  group->error = 0.0;
  for (const double sum : sums) group->error += sum;
}

// Groups of codes, `step` bytes from one to the next, and their scales, as far apart.
MONOLANE_CLONES void encode_i8(const float* x, int64_t groups, char* values, char* scales,
                               int64_t step, int64_t scale_step) {
  for (int64_t g = 0; g < groups; ++g, x += kGroup, values += step, scales += scale_step) {
    Group group;
    encode(x, std::fabs(largest(x)) / 127.0f, -127.0f, 127.0f, &group);
    for (int i = 0; i < kGroup; ++i) {
      values[i] = static_cast<char>(static_cast<int32_t>(group.codes[i]));
    }
    std::memcpy(scales, &group.scale, sizeof group.scale);
  }
}

MONOLANE_CLONES void encode_i4(const float* x, int64_t groups, char* values, char* scales,
                               int64_t step, int64_t scale_step) {
  for (int64_t g = 0; g < groups; ++g, x += kGroup, values += step, scales += scale_step) {
    const float most = largest(x);
    Group even, skewed;
    encode(x, std::fabs(most) / 7.0f, -8.0f, 7.0f, &even);
    encode(x, most / -8.0f, -8.0f, 7.0f, &skewed);
    add_error(x, &even);
    add_error(x, &skewed);
    const Group& best = skewed.error < even.error ? skewed : even;
    for (int i = 0; i < kGroup / 2; ++i) {
      const int32_t low = static_cast<int32_t>(best.codes[i]) + 8;
      const int32_t high = static_cast<int32_t>(best.codes[i + kGroup / 2]) + 8;
      values[i] = static_cast<char>(low | high << 4);
    }
    std::memcpy(scales, &best.scale, sizeof best.scale);
  }
}

}  // namespace

void quantize_rows(Format to, Format from, const void* x, int64_t rows, int64_t cols, void* values,
                   uint16_t* scales) {
  const int64_t groups = cols / kGroup;
  const char* row = static_cast<const char*>(x);
  char* out = static_cast<char*>(values);
  const auto encode_groups = to == Format::kI8 ? encode_i8 : encode_i4;
  constexpr int64_t kScale = sizeof(uint16_t);
  std::vector<float> scratch(from == Format::kF32 ? 0 : cols);
  for (int64_t r = 0; r < rows; ++r) {
    const float* floats = floats_of(from, row, cols, scratch.data());
    encode_groups(floats, groups, out, reinterpret_cast<char*>(scales), row_bytes(to, kGroup),
                  kScale);
    for (int64_t g = 0; g < groups; ++g) {
      if (!std::isfinite(f16_to_float(scales[g]))) refuse(f16_to_float(scales[g]));
    }
    row += row_bytes(from, cols);
    out += row_bytes(to, cols);
    scales += groups;
  }
}

void quantize_blocks(Format to, const float* x, int64_t cols, void* out) {
  const int64_t bytes = row_bytes(to, kGroup);
  char* blocks = static_cast<char*>(out);
  const auto encode_groups = to == Format::kQ80 ? encode_i8 : encode_i4;
  encode_groups(x, cols / kGroup, blocks + sizeof(uint16_t), blocks, bytes, bytes);
  // An infinite scale would mean infinity where sums of codes are multiplied with it: a key whose
  // score is -inf is passed over in silence.
  constexpr uint16_t kNone = 0x7E00;  // NaN
  for (int64_t at = 0; at < row_bytes(to, cols); at += bytes) {
    uint16_t scale;
    std::memcpy(&scale, blocks + at, sizeof scale);
    if (!std::isfinite(f16_to_float(scale))) std::memcpy(blocks + at, &kNone, sizeof kNone);
  }
}

}  // namespace monolane
