// Activations in the form that the policies of dot.h read. Rounding happens here, once per token,
// and in scalar code that the compiler vectorises: at width 1 it is one vector against a matrix.
#pragma once

#include "kernels/products/dot.h"
#include "kernels/products/panels.h"

namespace monolane::MONOLANE_ISA {

#ifdef __AVX512BF16__
using Bf16Dot = PairDot;
#else
using Bf16Dot = FloatDot<Bf16>;  // rounded to bfloat16, kept as float: the same values
#endif

static inline int64_t packed_bytes(Activation kind, int64_t cols) {
  switch (kind) {
    case Activation::kF32:
      return FloatDot<float>::token_bytes(cols);
    case Activation::kBf16:
      return Bf16Dot::token_bytes(cols);
    case Activation::kI8:
      return panel_token_bytes(cols);
  }
  return 0;
}

static inline void put_bf16(float x, uint16_t* out) { *out = float_to_bf16(x); }
static inline void put_bf16(float x, float* out) { *out = bf16_to_float(float_to_bf16(x)); }

static inline void pack_f32(const float* x, int64_t cols, void* packed) {
  float* out = static_cast<float*>(packed);
  std::memset(out, 0, static_cast<size_t>(FloatDot<float>::token_bytes(cols)));
  std::memcpy(out, x, static_cast<size_t>(cols) * sizeof(float));
}

static inline void pack_bf16(const float* x, int64_t cols, void* packed) {
  using Value = std::conditional_t<Bf16Dot::kStep == kElements, float, uint16_t>;
  std::memset(packed, 0, static_cast<size_t>(Bf16Dot::token_bytes(cols)));
  for (int64_t k = 0; k < cols; ++k) put_bf16(x[k], static_cast<Value*>(packed) + k);
}

// Of a group, unless the set has its own: the loops below took 52 ns a group with AVX-512 and AVX2,
// vectors take 7 to 9.
#ifndef MONOLANE_GROUPS
// The bits of the largest |x|: of floats >= 0 they order like the floats, and the loop vectorises.
static inline uint32_t largest_bits(const float* x) {
  uint32_t most = 0;
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t size = float_bits(x[i]) & 0x7FFFFFFFu;
    most = size > most ? size : most;
  }
  return most;
}

// Codes, and the sums of columns 0..15 and 16..31.
static inline void put_codes(const float* x, float factor, int8_t* codes, int32_t (&sums)[2]) {
  for (int i = 0; i < kGroup; ++i) {
    const float nearest = (x[i] * factor + 0x1.8p23f) - 0x1.8p23f;  // ties to even
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(nearest));
  }
  sums[0] = sums[1] = 0;
  for (int i = 0; i < kGroup; ++i) sums[i / 16] += codes[i];
}
#endif

// The codes of a group, and the sum of all.
static inline int32_t put_group(const float* x, float factor, TokenGroup* out) {
  int32_t sums[2];
  put_codes(x, factor, out->codes, sums);
  const int32_t sum = sums[0] + sums[1];
  out->minus_8 = -8 * sum;
  out->minus_16 = -16 * sum;
  out->minus_128 = -128 * sum;
  out->minus_32[0] = -32 * sums[0];
  out->minus_32[1] = -32 * sums[1];
  out->rest = 0;
  return sum;
}

// What the codes of a group leave over, into `rest`. Returns the sum of both in steps of it.
static inline int32_t put_rest(const float* x, float factor, int32_t sum, TokenGroup* out,
                               TokenGroup* rest) {
  float left[kGroup];
  for (int i = 0; i < kGroup; ++i) left[i] = x[i] - out->scale * out->codes[i];
  out->rest = static_cast<int32_t>(sizeof(TokenGroup) * (rest - out));
  return kFineSteps * sum + put_group(left, kFineSteps * factor, rest);
}

// One token; a group's scale is max |x| / 127. Below 2^-100 it counts as zero: 127 / max must stay
// finite. Squares are those of floats in double, hence exact, and sums of them without overflow.
static inline void pack_i8(const float* x, int64_t cols, void* packed) {
  auto* out = static_cast<TokenGroup*>(packed);
  const int64_t groups = cols / kGroup;
  double squares = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const float top = bits_float(largest_bits(x + g * kGroup));
    out[g].scale = top;
    squares += double{top} * top;
  }
  const double fine = squares * kFineGroups / static_cast<double>(groups);
  TokenGroup *rest = out + groups, *const end = rest + groups / kFineGroups;
  for (int64_t g = 0; g < groups; ++g, ++out, x += kGroup) {
    const float top = out->scale;
    const bool none = top < 0x1p-100f;
    const float factor = none ? 0.0f : 127.0f / top;
    int32_t sum = put_group(x, factor, out);
    out->scale = none ? 0.0f : top / 127.0f;
    if (!none && double{top} * top >= fine && rest < end) {
      sum = put_rest(x, factor, sum, out, rest++);
      out->scale /= kFineSteps;
    }
    out->sum = out->scale * static_cast<float>(sum);
  }
}

static inline void pack(Activation kind, const float* x, int64_t cols, int64_t width,
                        void* packed) {
  const int64_t bytes = packed_bytes(kind, cols);
  for (int64_t t = 0; t < width; ++t, x += cols) {
    void* token = static_cast<char*>(packed) + t * bytes;
    switch (kind) {
      case Activation::kF32:
        pack_f32(x, cols, token);
        break;
      case Activation::kBf16:
        pack_bf16(x, cols, token);
        break;
      case Activation::kI8:
        pack_i8(x, cols, token);
        break;
    }
  }
}

}  // namespace monolane::MONOLANE_ISA
