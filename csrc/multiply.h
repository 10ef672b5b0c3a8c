// The matrix product over any policy of dot.h: tiles of R rows by T tokens, whose accumulators live
// in registers while k runs from 0 to the end. Rows are the outer loop, so that each weight comes
// from memory once and is met by every token while its panel is in the first-level cache; the
// tokens (384 KB for 64 of 3072 bfloat16) stay in the second level.
//
// The order of the sum is the policy's step by step, then the vector's own tree: neither R, T, nor
// where a tile begins enters it.
#pragma once

#include "dot.h"

namespace monolane::MONOLANE_ISA {

// Where one call writes: y[t * stride + r].
struct Output {
  float* y;
  int64_t stride;
};

template <class Dot, int R, int T>
static inline void meet(const typename Dot::Left (&left)[R], const char* tokens,
                        int64_t token_stride, int64_t k, Floats (&acc)[R][T]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      acc[r][t] = Dot::accumulate(left[r], tokens + t * token_stride, k, acc[r][t]);
    }
  }
}

template <class Dot, int R, int T>
static inline void step(const Dot& dot, int64_t row, const char* tokens, int64_t token_stride,
                        int64_t k, Floats (&acc)[R][T]) {
  typename Dot::Left left[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) left[r] = dot.left(row + r, k);
  meet<Dot, R, T>(left, tokens, token_stride, k, acc);
}

// The columns that do not fill a step, as a step whose other lanes are zero.
template <class Dot, int R, int T>
static inline void last_step(const Dot& dot, int64_t row, const char* tokens, int64_t token_stride,
                             int64_t k, Floats (&acc)[R][T]) {
  typename Dot::Left left[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) left[r] = dot.left_first(row + r, k);
  meet<Dot, R, T>(left, tokens, token_stride, k, acc);
}

template <int R, int T>
static inline void reduce(const Floats (&acc)[R][T], Output out) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    float* y = out.y + t * out.stride;
    int r = 0;
#pragma GCC unroll 2
    for (; r + 4 <= R; r += 4) {
      sum4(acc[r][t], acc[r + 1][t], acc[r + 2][t], acc[r + 3][t], y + r);
    }
#pragma GCC unroll 4
    for (; r < R; ++r) y[r] = sum(acc[r][t]);
  }
}

// How a tile's weights are brought in before they are needed. Measured: bench/cpu/README.md.
enum class Fetch {
  kNone,   // by the hardware alone
  kAhead,  // each step prefetches as many bytes as it uses, kAhead further on, in one stream
  kParts,  // the next panel in equal parts, one before each tile: memory works while tiles compute
};
constexpr int64_t kAhead = 8192;  // bytes; 3 KB and 16 KB read up to 8 and 4 % slower

// Steps of a tile's loop body: a tile of one row and token is short, and the out-of-order window
// must reach far ahead into the row. Four: 97 % of the read bandwidth where one gave 88 %.
template <int R, int T>
constexpr int kUnroll = R * T == 1 ? 4 : 1;

// Rows row .. row + R - 1 by T tokens.
template <class Dot, int R, int T, Fetch kFetch>
static inline void tile(const Dot& dot, int64_t row, const char* tokens, int64_t token_stride,
                        Output out) {
  constexpr int kSteps = kUnroll<R, T>;
  Floats acc[R][T];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[r][t] = zero();
  }
  const char* next = dot.row(row) + kAhead;
  int64_t k = 0;
  for (; k + kSteps * Dot::kStep <= dot.cols; k += kSteps * Dot::kStep) {
    if constexpr (kFetch == Fetch::kAhead) {
#pragma GCC unroll 16
      for (int b = 0; b < kSteps * R * Dot::kStepBytes; b += 64) prefetch(next + b);
      next += kSteps * R * Dot::kStepBytes;
    }
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      step<Dot, R, T>(dot, row, tokens, token_stride, k + s * Dot::kStep, acc);
    }
  }
  if constexpr (kSteps > 1) {
    for (; k + Dot::kStep <= dot.cols; k += Dot::kStep) {
      step<Dot, R, T>(dot, row, tokens, token_stride, k, acc);
    }
  }
  if (k < dot.cols) last_step<Dot, R, T>(dot, row, tokens, token_stride, k, acc);
  reduce<R, T>(acc, out);
}

// R rows by `width` tokens, T at a time and then the rest.
template <class Dot, int R, int T, Fetch kFetch>
static inline void panel(const Dot& dot, int64_t row, const char* tokens, int64_t width,
                         Output out) {
  if constexpr (T > 0) {
    const int64_t stride = Dot::token_bytes(dot.cols);
    const char* next = dot.row(row + R);
    const int64_t part = kFetch == Fetch::kParts ? R * dot.row_stride() / (width / T + 1) : 0;
    for (; width >= T; width -= T, tokens += T * stride, out.y += T * out.stride) {
      for (int64_t b = 0; b < part; b += 64) prefetch(next + b);
      next += part;
      tile<Dot, R, T, kFetch>(dot, row, tokens, stride, out);
    }
    if (width > 0) panel<Dot, R, T - 1, kFetch>(dot, row, tokens, width, out);
  }
}

template <class Dot, int R, int T, Fetch kFetch>
static inline void rows(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                        int64_t width, Output out) {
  int64_t r = begin;
  for (; r + R <= end; r += R, out.y += R) {
    panel<Dot, R, T, kFetch>(dot, r, tokens, width, out);
  }
  for (; r < end; ++r, ++out.y) panel<Dot, 1, T, kFetch>(dot, r, tokens, width, out);
}

// Up to kFew tokens, where memory is the limit: one row, or two, at a time, since few sequential
// streams are what it serves best. Narrower vectors need four to hide the latency of their longer
// chains.
template <class Dot>
static void multiply_few(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                         int64_t width, Output out) {
  if constexpr (kLanes < 16) {
    rows<Dot, Dot::kWideRows, Dot::kWideTokens, Fetch::kAhead>(dot, begin, end, tokens, width, out);
  } else if (width > 1) {
    rows<Dot, 2, 8, Fetch::kAhead>(dot, begin, end, tokens, width, out);
  } else {
    rows<Dot, 1, 1, Dot::kLight ? Fetch::kNone : Fetch::kAhead>(dot, begin, end, tokens, 1, out);
  }
}

template <class Dot>
static void multiply_by(const Dot& dot, int64_t begin, int64_t end, const void* packed,
                        int64_t width, Output out) {
  constexpr int kFew = kLanes < 16 ? Dot::kWideTokens : 8;
  const char* tokens = static_cast<const char*>(packed);
  if (width <= kFew) return multiply_few(dot, begin, end, tokens, width, out);
  rows<Dot, Dot::kWideRows, Dot::kWideTokens, Fetch::kParts>(dot, begin, end, tokens, width, out);
}

}  // namespace monolane::MONOLANE_ISA
