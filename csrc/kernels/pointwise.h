// The kernels between the products: norm, activation, sum, conversions. They touch kilobytes where
// a product touches megabytes, so they are one vector loop each, not fused ones.
#pragma once

#include "kernels/isa/vector.h"
#include "kernels/kernels.h"

namespace monolane::MONOLANE_ISA {

// The sum of squares in four interleaved accumulators, then one tree. All terms are >= 0, so with
// K / (4 * N) additions in a row, N the elements of a vector, the relative error is at most
// (K / (4 * N) + 7) * 2^-24: 3e-6 for K = 3072 and N = 16, and 1.2e-5 for N = 4; the root halves
// it.
static inline float sum_of_squares(const float* x, int64_t cols) {
  Floats acc[4] = {zero(), zero(), zero(), zero()};
  int64_t k = 0;
  for (; k + 4 * kElements <= cols; k += 4 * kElements) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Floats part = load(x + k + i * kElements);
      acc[i] = fma(part, part, acc[i]);
    }
  }
  for (; k < cols; k += kElements) {
    const Floats part = k + kElements <= cols ? load(x + k) : load_first(x + k, cols - k);
    acc[0] = fma(part, part, acc[0]);
  }
  return sum(add(add(acc[0], acc[1]), add(acc[2], acc[3])));
}

static void rms_norm(const float* x, int64_t x_stride, const float* scale, float eps, int64_t cols,
                     int64_t width, float* out, int64_t out_stride) {
  for (int64_t t = 0; t < width; ++t, x += x_stride, out += out_stride) {
    const float mean = sum_of_squares(x, cols) / static_cast<float>(cols);
    const float factor = 1.0f / __builtin_sqrtf(mean + eps);
    if (scale == nullptr) {
      for (int64_t k = 0; k < cols; ++k) out[k] = x[k] * factor;
      continue;
    }
    for (int64_t k = 0; k < cols; ++k) out[k] = x[k] * factor * scale[k];
  }
}

// x / (1 + e^-x): exp is inf for x < -89, and the quotient then the zero that it should be.
static inline Floats silu(Floats x) {
  const Floats e = exp(sub(zero(), x));
  return div(x, add(splat(1.0f), e));
}

// 1 / (1 + e^-x), of which the same holds.
static inline Floats sigmoid(Floats x) {
  const Floats e = exp(sub(zero(), x));
  return div(splat(1.0f), add(splat(1.0f), e));
}

// x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 x^3): GELU's tanh formula
// (arXiv:1606.08415). Since (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), it is x / (1 + e^-2u): the two
// constants are 2 * sqrt(2 / pi), and that times 0.044715.
static inline Floats gelu_tanh(Floats x) {
  const Floats slope = fma(mul(x, x), splat(0.0713548162726f), splat(1.59576912160573f));
  const Floats e = exp(sub(zero(), mul(x, slope)));
  return div(x, add(splat(1.0f), e));
}

template <Floats (*Function)(Floats)>
static inline Floats times(Floats gate, Floats up) {
  return mul(Function(gate), up);
}

// GPT-OSS's SwiGLU; kernels.h. A NaN stays one: it is the second operand of min and max.
static inline Floats clamped_swiglu(Floats gate, Floats up) {
  const Floats limit = splat(7.0f), slope = splat(1.702f);
  const Floats g = min(limit, gate), u = min(limit, max(splat(-7.0f), up));
  const Floats e = exp(sub(zero(), mul(slope, g)));
  return mul(div(g, add(splat(1.0f), e)), add(u, splat(1.0f)));
}

template <Floats (*Function)(Floats, Floats)>
static void gate_up(const float* gate, const float* up, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kElements <= count; i += kElements)
    store(out + i, Function(load(gate + i), load(up + i)));
  if (i < count) {
    const int64_t n = count - i;
    store_first(out + i, Function(load_first(gate + i, n), load_first(up + i, n)), n);
  }
}

static void add_floats(const float* a, const float* b, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

static void store_kv(const float* x, int64_t count, Format kv, void* out) {
  uint16_t* halves = static_cast<uint16_t*>(out);
  switch (kv) {
    case Format::kF32:
      std::memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
      break;
    case Format::kBf16:
      for (int64_t i = 0; i < count; ++i) halves[i] = float_to_bf16(x[i]);
      break;
    case Format::kF16:
      for (int64_t i = 0; i < count; ++i) halves[i] = float_to_f16(x[i]);
      break;
    default:
      quantize_blocks(kv, x, count, out);
  }
}

template <class W>
static inline void widen_as(const W* row, int64_t cols, float* out) {
  int64_t k = 0;
  for (; k + kElements <= cols; k += kElements) store(out + k, load(row + k));
  if (k < cols) store_first(out + k, load_first(row + k, cols - k), cols - k);
}

static void widen(const Matrix& w, int64_t row, float* out) {
  if (is_repacked(w.format)) return widen_row(w, row, out);
  const char* data = static_cast<const char*>(w.data) + row * row_bytes(w.format, w.cols);
  switch (w.format) {
    case Format::kF32:
      widen_as(reinterpret_cast<const float*>(data), w.cols, out);
      break;
    case Format::kBf16:
      widen_as(reinterpret_cast<const Bf16*>(data), w.cols, out);
      break;
    case Format::kF16:
      widen_as(reinterpret_cast<const F16*>(data), w.cols, out);
      break;
    default:
      break;  // refused before it comes here
  }
}

}  // namespace monolane::MONOLANE_ISA
