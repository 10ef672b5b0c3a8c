// One query head over its keys: scores by the tiles of multiply.h (the keys are a matrix whose rows
// lie `stride` apart), then the softmax's partial sums and the weighted sum of the values. Three
// passes over `count` floats of scratch, not one fused pass: the scratch stays in cache, and the
// peak is known before the first exp, so no partial result is ever rescaled.
#pragma once

#include "multiply.h"
#include "pack.h"

namespace monolane::MONOLANE_ISA {

static inline float peak_of(const float* scores, int64_t count) {
  Floats peak = splat(-__builtin_inff());
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) peak = max(load(scores + j), peak);
  float top = max_lane(peak);
  for (; j < count; ++j) top = scores[j] > top ? scores[j] : top;
  return top;
}

// scores[j] = e^(scores[j] - peak), and their sum: lane by lane in the order of j, then the tree.
// If all scores are -inf there is nothing to subtract, and every term is zero.
static inline float exponentials(float* scores, int64_t count, float peak) {
  const Floats shift = splat(peak == -__builtin_inff() ? 0.0f : peak);
  Floats total = zero();
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
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

// out[c] = sum_j e[j] * values[j][c] for N vectors of columns.
template <class W, int N>
static inline void blend(const float* e, const W* values, int64_t stride, int64_t count,
                         float* out) {
  Floats acc[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) acc[i] = zero();
  for (int64_t j = 0; j < count; ++j, values += stride) {
    const Floats weight = splat(e[j]);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[i] = fma(weight, load(values + i * kLanes), acc[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) store(out + i * kLanes, acc[i]);
}

template <class W>
static inline void blend_all(const float* e, const W* values, int64_t stride, int64_t count,
                             int64_t head_dim, float* out) {
  int64_t c = 0;
  for (; c + 8 * kLanes <= head_dim; c += 8 * kLanes) {
    blend<W, 8>(e, values + c, stride, count, out + c);
  }
  for (; c + 4 * kLanes <= head_dim; c += 4 * kLanes) {
    blend<W, 4>(e, values + c, stride, count, out + c);
  }
  for (; c + kLanes <= head_dim; c += kLanes) blend<W, 1>(e, values + c, stride, count, out + c);
  if (c < head_dim) {
    Floats acc = zero();
    for (int64_t j = 0; j < count; ++j) {
      acc = fma(splat(e[j]), load_first(values + j * stride + c, head_dim - c), acc);
    }
    store_first(out + c, acc, head_dim - c);
  }
}

template <class W>
static void attend_as(const float* q, const W* keys, const W* values, int64_t stride, int64_t count,
                      int64_t head_dim, float scale, float* scores, float* peak, float* total,
                      float* out) {
  alignas(64) float query[odd_lines(kMaxHeadDim / 16) / 4];
  pack_f32(q, head_dim, query);
  const FloatDot<W> dot{keys, head_dim, stride};
  rows<FloatDot<W>, 4, 1, Fetch::kNone>(dot, 0, count, reinterpret_cast<const char*>(query), 1,
                                        {scores, 0});
  for (int64_t j = 0; j < count; ++j) scores[j] *= scale;
  *peak = peak_of(scores, count);
  *total = exponentials(scores, count, *peak);
  blend_all(scores, values, stride, count, head_dim, out);
}

static void attend(const float* q, const void* keys, const void* values, Format kv, int64_t stride,
                   int64_t count, int64_t head_dim, float scale, float* scores, float* peak,
                   float* total, float* out) {
  const auto run = [&](auto w) {
    using W = decltype(w);
    attend_as(q, static_cast<const W*>(keys), static_cast<const W*>(values), stride, count,
              head_dim, scale, scores, peak, total, out);
  };
  switch (kv) {
    case Format::kF32:
      run(float{});
      break;
    case Format::kBF16:
      run(Bf16{});
      break;
    case Format::kF16:
      run(F16{});
      break;
    default:
      break;  // a cache holds no codes
  }
}

}  // namespace monolane::MONOLANE_ISA
