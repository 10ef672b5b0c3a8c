// How one step of columns of a weight row is multiplied with one token, per pair of formats: the
// policies that multiply.h is written over. Each keeps one vector accumulator per (row, token) and
// never more: a second one per row would hide latency at width 1 but halve the tile at width 64,
// and both must sum in the same order. Latency is hidden by rows in flight instead.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/isa/vector.h"
#include "kernels/products/panels.h"

namespace monolane::MONOLANE_ISA {

// Bytes of a packed token: an odd number of cache lines, so that equal columns of different tokens
// do not meet in one set of the cache when K is a power of two.
constexpr int64_t odd_lines(int64_t lines) { return (lines | 1) * 64; }

// Float weights W, widened exactly, against float activations.
template <class W>
struct FloatDot {
  static constexpr int kStep = kElements;
  static constexpr int kStepBytes = kElements * sizeof(W);
  static constexpr int kTokenStepBytes = kElements * sizeof(float);  // of a packed token
  static constexpr bool kLight = sizeof(W) == 4;  // the hardware prefetches far enough by itself
  static constexpr int kWideRows = 4;             // the tile of large widths
  static constexpr int kWideTokens = kRegisters == 32 ? 6 : 2;
  static constexpr int kRowTokens = 1;  // up to which one row at a time is faster than two
  using Left = Floats;

  const W* rows;
  int64_t cols;
  int64_t stride;  // elements from row to row

  static int64_t token_bytes(int64_t cols) { return odd_lines((cols + 15) / 16); }
  const char* row(int64_t r) const { return reinterpret_cast<const char*>(rows + r * stride); }
  int64_t row_stride() const { return stride * static_cast<int64_t>(sizeof(W)); }
  Left left(int64_t r, int64_t k) const { return load(rows + r * stride + k); }
  Left left_first(int64_t r, int64_t k) const {
    return load_first(rows + r * stride + k, cols - k);
  }
  static Floats accumulate(const Left& w, const char* token, int64_t k, Floats acc) {
    return fma(w, load(reinterpret_cast<const float*>(token) + k), acc);
  }
};

#ifdef __AVX512BF16__
// bfloat16 on both sides, by the hardware's dot of pairs.
struct PairDot {
  static constexpr int kStep = kPairs;
  static constexpr int kStepBytes = kPairs * 2;
  static constexpr int kTokenStepBytes = kPairs * 2;
  static constexpr bool kLight = true;
  static constexpr int kWideRows = 4;
  static constexpr int kWideTokens = 6;
  static constexpr int kRowTokens = 5;
  using Left = Pairs;

  const Bf16* rows;
  int64_t cols;
  int64_t stride;  // elements from row to row

  static int64_t token_bytes(int64_t cols) { return odd_lines((cols + 31) / 32); }
  const char* row(int64_t r) const { return reinterpret_cast<const char*>(rows + r * stride); }
  int64_t row_stride() const { return stride * 2; }
  Left left(int64_t r, int64_t k) const { return load_pairs(rows + r * stride + k); }
  Left left_first(int64_t r, int64_t k) const {
    return load_pairs(Padded<Bf16, kPairs>(rows + r * stride + k, cols - k).values);
  }
  static Floats accumulate(const Left& w, const char* token, int64_t k, Floats acc) {
    return dot_pairs(w, load_pairs(reinterpret_cast<const Bf16*>(token) + k), acc);
  }
};
#endif

// Bytes of a token quantised for panels: panel_dot.h.
static inline int64_t panel_token_bytes(int64_t cols) {
  return odd_lines(cols / kGroup + cols / kGroup / kFineGroups);
}

}  // namespace monolane::MONOLANE_ISA
