// Products of 16-bit floats with many tokens, where registers are few: rows of weights are widened
// once for all tokens, into the first-level cache, and not once for each tile of tokens.
//
// With 16 registers a tile of multiply.h has 4 rows and 2 tokens, and widens its weights for 8
// multiplications: 4 loads that widen, 4 shifts, 2 loads of tokens. Here a tile of 4 rows and 3
// tokens has 12 for 7 loads. The order of each sum is the same: columns one after another, then the
// vector's own tree.
#pragma once

#include "kernels/products/multiply.h"

namespace monolane::MONOLANE_ISA {

constexpr int kWidenRows = 4;
constexpr int kWidenTokens = 3;
// From so many tokens on: with 16 it is a tenth slower than without, with 64 a fifth to two fifths
// faster.
constexpr int64_t kWidenFrom = 32;
// Of a block: 8 KB of weights and 6 of tokens, and 192 KB of kMaxWidth tokens in the second level.
constexpr int64_t kWidenColumns = 512;

template <class Dot>
constexpr bool kIsWidened = false;
template <class W>
constexpr bool kIsWidened<FloatDot<W>> = sizeof(W) == 2 && kRegisters == 16;

// Rows row .. row + R - 1 of a block of columns, [R][kWidenColumns], zeros behind the last column
// up to a whole vector. The same rows of the next block are asked for meanwhile.
template <class Dot, int R>
static inline void widen_block(const Dot& dot, int64_t row, Columns columns, float* to) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(*dot.rows));  // elements
  for (int r = 0; r < R; ++r, to += kWidenColumns) {
    const auto* from = dot.rows + (row + r) * dot.stride;
    const auto* next = from + kBlockRows * dot.stride;
    int64_t k = columns.begin;
    for (; k + kElements <= columns.end; k += kElements) {
      if (k % kLine == 0) prefetch_far(next + k);
      store(to + k - columns.begin, load(from + k));
    }
    if (k < columns.end) store(to + k - columns.begin, load_first(from + k, columns.end - k));
  }
}

// Rows of a block by T tokens, which begin at its first column.
template <int R, int T>
static inline void widened_tile(const float* rows, int64_t count, const char* tokens,
                                int64_t token_stride, bool first, bool last, float* aside,
                                Output out) {
  using Dot = FloatDot<float>;
  Floats acc[R][T];
  begin_sums<R, T>(first, aside, acc);
  for (int64_t k = 0; k < count; k += kElements) {
    Floats x[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      x[t] = load(reinterpret_cast<const float*>(tokens + t * token_stride) + k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Dot::Left w = load(rows + r * kWidenColumns + k);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) acc[r][t] = fma(w, x[t], acc[r][t]);
    }
  }
  if (!last) return put_aside<R, T>(acc, aside);
  reduce<R, T>(acc, out);
}

// R rows of a block of columns by all tokens, T at a time and then the rest.
template <int R, int T>
static inline void widened_tiles(const float* rows, int64_t count, const char* tokens,
                                 int64_t token_stride, int64_t width, bool first, bool last,
                                 float* aside, Output out) {
  if constexpr (T > 0) {
    for (; width >= T; width -= T, tokens += T * token_stride, out.y += T * out.stride) {
      widened_tile<R, T>(rows, count, tokens, token_stride, first, last, aside, out);
      aside += T * kBlockRows * kElements;
    }
    if (width > 0) {
      widened_tiles<R, T - 1>(rows, count, tokens, token_stride, width, first, last, aside, out);
    }
  }
}

template <class Dot, int R>
static inline void widened_rows(const Dot& dot, int64_t row, Columns columns, const char* tokens,
                                int64_t width, float* aside, Output out) {
  alignas(64) float rows[R * kWidenColumns];
  widen_block<Dot, R>(dot, row, columns, rows);
  widened_tiles<R, kWidenTokens>(rows, columns.end - columns.begin, tokens + columns.begin * 4,
                                 Dot::token_bytes(dot.cols), width, columns.begin == 0,
                                 columns.end == dot.cols, aside, out);
}

template <class Dot>
static void multiply_widened(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                             int64_t width, Output out) {
  alignas(64) float aside[kMaxWidth * kBlockRows * kElements];
  for (int64_t block = begin; block < end; block += kBlockRows) {
    const int64_t last = std::min(end, block + kBlockRows);
    for (int64_t k = 0; k < dot.cols; k += kWidenColumns) {
      const Columns columns{k, std::min(dot.cols, k + kWidenColumns)};
      int64_t r = block;
      const auto at = [&](int64_t row) { return aside + (row - block) * kElements; };
      for (; r + kWidenRows <= last; r += kWidenRows) {
        widened_rows<Dot, kWidenRows>(dot, r, columns, tokens, width, at(r),
                                      {out.y + (r - begin), out.stride});
      }
      for (; r < last; ++r) {
        widened_rows<Dot, 1>(dot, r, columns, tokens, width, at(r),
                             {out.y + (r - begin), out.stride});
      }
    }
  }
}

}  // namespace monolane::MONOLANE_ISA
