// Codes in planes (planes.h) against the int8 activations of dot.h: the policy for what is made of
// GGUF's blocks. Codes stay unsigned, as stored. What they have too much, and minima, cost a
// product with the sums of the activations, which the token has: its last vector, -8 times the
// sums.
//
// Instructions with AVX-512, one row and token, for 128 columns, the loop's own and half a prefetch
// included: int4 15 for 72 bytes, q4_1 20 for 80, q4_k 23 for 74, q5_k 29 for 90, q6_k 32 for 105.
#pragma once

#include "dot.h"
#include "planes.h"

namespace monolane::MONOLANE_ISA {

template <Format kFormat>
struct PlaneDot {
  using Tokens = GroupDot<Int8>;
  static constexpr Planes kPlanes = planes_of(kFormat);
  static constexpr bool kHalfScales = kFormat == Format::kQ6Kp;  // scales of 16 columns
  static constexpr bool kMinimum = kPlanes.minimum != 0;
  static constexpr int kGroups = Tokens::kGroups;  // groups of a step
  static constexpr int kStep = Tokens::kStep;
  static constexpr int kStepBytes =  // rounded up: for prefetches
      kGroups * (16 + kPlanes.high + kPlanes.scale) + (kGroups * kPlanes.super + 7) / 8;
  static constexpr int kTokenStepBytes = Tokens::kTokenStepBytes;
  static constexpr bool kLight = false;
  static constexpr int kWideRows = kRegisters == 32 ? 4 : 1;
  static constexpr int kWideTokens = kRegisters == 32 ? 3 : 4;
  static constexpr int kRowTokens = 1;
  static constexpr int64_t kShortRow = 1536;
  struct Left {
    Codes codes;
    Twos scales;  // scale and minimum / -8, or those of columns 0..15 and 16..31
  };

  const char* rows;
  int64_t cols;
  PlaneStarts starts;

  explicit PlaneDot(const Matrix& w)
      : rows(static_cast<const char*>(w.data)),
        cols(w.cols),
        starts(plane_starts(kFormat, w.cols)) {}

  static int64_t token_bytes(int64_t cols) { return Tokens::token_bytes(cols); }
  const char* row(int64_t r) const { return rows + r * row_stride(); }
  int64_t row_stride() const { return row_bytes(kFormat, cols); }

  Left left(int64_t r, int64_t k) const {
    const char* at = row(r);
    const int64_t g = k / kGroup;
    return {join(at + g * 16, at + starts.high + g * kPlanes.high),
            spread_scales(at + starts.scale + g * kPlanes.scale,
                          at + starts.super + k / kSuper * kPlanes.super)};
  }
  Left left_first(int64_t r, int64_t k) const {
    if constexpr (kPlanes.super > 0) {
      return left(r, k);  // rows are whole super-blocks, and these whole steps
    } else {
      const char* at = row(r);
      const int64_t g = k / kGroup, count = (cols - k) / kGroup;
      const PaddedGroups<16, kGroups> low(at + g * 16, count);
      const PaddedGroups<kPlanes.scale, kGroups> scale(at + starts.scale + g * kPlanes.scale,
                                                       count);
      if constexpr (kPlanes.high > 0) {
        const PaddedGroups<kPlanes.high, kGroups> high(at + starts.high + g * kPlanes.high, count);
        return {join(low.values, high.values), spread_scales(scale.values, nullptr)};
      } else {
        return {join(low.values, nullptr), spread_scales(scale.values, nullptr)};
      }
    }
  }

  static Floats accumulate(const Left& w, const char* token, int64_t k, Floats acc) {
    const char* block = token + k / kStep * kTokenStepBytes;
    const Bytes low = load_bytes(block), high = load_bytes(block + Tokens::kVector);
    const Floats scale = load(reinterpret_cast<const float*>(block + 2 * Tokens::kVector));
    const Ints starts = load_ints(reinterpret_cast<const int32_t*>(block + 3 * Tokens::kVector));
    if constexpr (kMinimum) {
      const Ints sum = dot<Int4>(dot<Int4>(none(), w.codes.low, low), w.codes.high, high);
      const Floats minimum = mul(to_float(starts), w.scales.second);
      return fma(fma(to_float(sum), w.scales.first, minimum), scale, acc);
    } else if constexpr (kHalfScales) {
      // Each half has its own scale, but `starts` is the sum of both: the first half's part of it
      // is taken from the one and given to the other. It is the same for all rows.
      const Ints part = dot<Int4>(none(), every(kPlanes.bias), low);
      const Ints both = doubled<2>(starts);
      const Ints first = sub(dot<Int4>(none(), w.codes.low, low), part);
      const Ints second = dot<Int4>(add(both, part), w.codes.high, high);
      const Floats sum =
          fma(to_float(first), w.scales.first, mul(to_float(second), w.scales.second));
      return fma(sum, scale, acc);
    } else {
      const Ints start = doubled<1>(starts);
      const Ints sum = dot<Int4>(dot<Int4>(start, w.codes.low, low), w.codes.high, high);
      return fma(to_float(sum), mul(w.scales.first, scale), acc);
    }
  }

 private:
  static_assert(kMinimum || kPlanes.bias == (kHalfScales ? 8 << 2 : 8 << 1));

  static Codes join(const char* low, [[maybe_unused]] const char* high) {
    if constexpr (kPlanes.high == 0) {
      return load_nibbles(low);
    } else if constexpr (kPlanes.high == 4) {
      return add_fifth_bits(load_nibbles(low), high);
    } else {
      return add_upper_bits(load_nibbles(low), high);
    }
  }

  static Twos spread_scales(const char* scale, [[maybe_unused]] const char* super) {
    if constexpr (kHalfScales) {
      return spread_bytes(reinterpret_cast<const int8_t*>(scale), super);
    } else if constexpr (kMinimum) {
      const Twos twos = kPlanes.super == 0
                            ? spread_halves(scale)
                            : spread_bytes(reinterpret_cast<const uint8_t*>(scale), super);
      return {twos.first, mul(twos.second, splat(-0.125f * kPlanes.minimum))};
    } else {
      return {spread(reinterpret_cast<const uint16_t*>(scale)), zero()};
    }
  }
};

}  // namespace monolane::MONOLANE_ISA
