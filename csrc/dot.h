// How one step of columns of a weight row is multiplied with one token, per pair of formats: the
// policies that multiply.h is written over. Each keeps one vector accumulator per (row, token) and
// never more: a second one per row would hide latency at width 1 but halve the tile at width 64,
// and both must sum in the same order. Latency is hidden by rows in flight instead.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels.h"
#include "vector.h"

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
  static constexpr int kRowTokens = 1;     // up to which one row at a time is faster than two
  static constexpr bool kFewTiles = true;  // for each number of tokens, and for few of them
  static constexpr int64_t kShortRow = 0;  // columns up to which two are faster for a single token
  static constexpr bool kMinima = false;
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
  static constexpr bool kFewTiles = true;
  static constexpr int64_t kShortRow = 0;
  static constexpr bool kMinima = false;
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

// Integer codes W against activations quantised to int8. A step is a block of as many groups as
// there are quarters of a vector: elements 4g .. 4g + 3 sum group g in integers, exactly, and are
// then scaled and added in float.
//
// A token is packed in blocks of four vectors: columns 0..15 of each group; columns 16..31 of each
// group; each group's scale in four elements; and, per element, -8 times the sum of its
// eight activations, from which the sets with unsigned codes start their sums to cancel the bias.
// Behind the blocks lie the sums of the groups, scaled: what minima are multiplied with.
template <class W>
struct GroupDot {
  static constexpr int kVector = kElements * 4;   // bytes of a vector
  static constexpr int kGroups = kElements / 4;   // groups of a block
  static constexpr int kStep = kGroups * kGroup;  // columns of a block
  static constexpr int kGroupBytes = std::is_same_v<W, Int4> ? 16 : 32;
  static constexpr int kStepBytes = kGroups * kGroupBytes;
  static constexpr int kTokenStepBytes = 4 * kVector;
  static constexpr bool kLight = false;
  static constexpr int kWideRows = kRegisters == 32 ? 4 : 1;
  static constexpr int kWideTokens = kRegisters == 32 ? 3 : 4;
  static constexpr int kRowTokens = std::is_same_v<W, Int4> ? 1 : 2;
  static constexpr bool kFewTiles = true;
  static constexpr int64_t kShortRow = 1536;
  static constexpr bool kMinima = false;
  struct Left {
    Codes codes;
    Floats scale;
  };

  const W* rows;
  int64_t cols;
  const uint16_t* scales;

  static int64_t sums_at(int64_t cols) { return (cols + kStep - 1) / kStep * 4 * kVector; }
  static int64_t token_bytes(int64_t cols) {
    return odd_lines((sums_at(cols) + cols / kGroup * 4 + 63) / 64);  // whole vectors of sums
  }
  const char* row(int64_t r) const {
    return reinterpret_cast<const char*>(rows + r * row_stride());
  }
  int64_t row_stride() const { return cols / kGroup * kGroupBytes; }
  Left left(int64_t r, int64_t k) const {
    const int64_t group = (r * cols + k) / kGroup;
    return {load_codes(rows + group * kGroupBytes), spread(scales + group)};
  }
  Left left_first(int64_t r, int64_t k) const {
    const int64_t group = (r * cols + k) / kGroup;
    const int64_t count = (cols - k) / kGroup;
    const PaddedGroups<kGroupBytes, kGroups> codes(rows + group * kGroupBytes, count);
    const PaddedGroups<2, kGroups> scale(scales + group, count);
    return {load_codes(codes.template as<W>()), spread(scale.template as<uint16_t>())};
  }
  static Floats accumulate(const Left& w, const char* token, int64_t k, Floats acc) {
    const char* block = token + k / kStep * (4 * kVector);
    Ints sum = start<W>(load_ints(reinterpret_cast<const int32_t*>(block + 3 * kVector)));
    sum = dot<W>(sum, w.codes.low, load_bytes(block));
    sum = dot<W>(sum, w.codes.high, load_bytes(block + kVector));
    const Floats scale = load(reinterpret_cast<const float*>(block + 2 * kVector));
    return fma(to_float(sum), mul(w.scale, scale), acc);
  }
};

}  // namespace monolane::MONOLANE_ISA
