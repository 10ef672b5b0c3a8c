// Codes in planes (planes.h) against the int8 activations of dot.h: the policy for what is made of
// GGUF's blocks. Codes stay unsigned, as stored: what they have too much is cancelled by the sums
// of the activations that a token has already, its last vector, -8 times the sums. Minima are added
// at the beginning of a row, from the sums of whole groups: `add_minima`.
//
// Vector operations with AVX-512 for 128 columns, one row and token, without loads and stores: int4
// 11 for 72 bytes, q4_1 12 for 80, q5_0 15 for 88, q5_1 16 for 96, q4_k 13 for 74, q5_k 17 for 90,
// q6_k 26 for 105. Two of them a cycle are what an Intel core does.
#pragma once

#include "dot.h"
#include "planes.h"

namespace monolane::MONOLANE_ISA {

// kBlocks: blocks of the token in a step; more than one where a super-block is, whose scales then
// are prepared once.
template <Format kFormat, int kBlocks = 1>
struct PlaneDot {
  using Tokens = GroupDot<Int8>;
  static constexpr Planes kPlanes = planes_of(kFormat);
  static constexpr bool kMinima = kPlanes.minimum > 0;
  static constexpr bool kSupers = kPlanes.super > 0;
  static constexpr bool kHalfScales = kSupers && !kMinima;  // scales of 16 columns
  static constexpr int kScales = kHalfScales ? 2 : kBlocks;
  static constexpr int kGroups = kBlocks * Tokens::kGroups;  // groups of a step
  static constexpr int kStep = kBlocks * Tokens::kStep;
  static constexpr int kStepBytes =  // rounded up: for prefetches
      kGroups * (16 + kPlanes.high + kPlanes.scale + kPlanes.minimum) + (kSupers ? 2 : 0);
  static constexpr int kTokenStepBytes = kBlocks * Tokens::kTokenStepBytes;
  static constexpr bool kLight = false;
  static constexpr int kWideRows = kRegisters == 32 ? 2 : 1;  // 4 x 3 was 15 to 40 % slower
  static constexpr int kWideTokens = kRegisters == 32 ? 8 : 4;
  static constexpr int kRowTokens = 1;
  static constexpr bool kFewTiles = false;  // of six formats they would take a minute to compile
  static constexpr int64_t kShortRow = kBlocks == 1 ? 6144 : 0;  // two rows: up to 11 % faster
  static_assert(kBlocks == 1 || (kSupers && kMinima && kStep == kSuper));
  struct Left {
    Codes codes[kBlocks];
    Floats scales[kScales];  // of each block, or of columns 0..15 and 16..31
  };

  const char* rows;
  int64_t cols;
  PlaneStarts starts;

  explicit PlaneDot(const Matrix& w)
      : rows(static_cast<const char*>(w.data)),
        cols(w.cols),
        starts(plane_starts(kFormat, w.cols)) {}

  static int64_t token_bytes(int64_t cols) { return Tokens::token_bytes(cols); }
  static int64_t sums_at(int64_t cols) { return Tokens::sums_at(cols); }
  const char* row(int64_t r) const { return rows + r * row_stride(); }
  int64_t row_stride() const { return row_bytes(kFormat, cols); }

  Left left(int64_t r, int64_t k) const {
    const char* at = row(r);
    const int64_t g = k / kGroup;
    Left found;
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) {
      const int64_t first = g + b * Tokens::kGroups;
      found.codes[b] = join(at + first * 16, at + starts.high + first * kPlanes.high);
    }
    spread_scales(at + starts.scale + g * kPlanes.scale,
                  at + starts.super + k / kSuper * kPlanes.super, found.scales);
    return found;
  }
  Left left_first(int64_t r, int64_t k) const {
    if constexpr (kSupers) {
      return left(r, k);  // rows are whole super-blocks, and these whole steps
    } else {
      const char* at = row(r);
      const int64_t g = k / kGroup, count = (cols - k) / kGroup;
      const PaddedGroups<16, kGroups> low(at + g * 16, count);
      const PaddedGroups<kPlanes.scale, kGroups> scale(at + starts.scale + g * kPlanes.scale,
                                                       count);
      Left found;
      if constexpr (kPlanes.high > 0) {
        const PaddedGroups<kPlanes.high, kGroups> high(at + starts.high + g * kPlanes.high, count);
        found.codes[0] = join(low.values, high.values);
      } else {
        found.codes[0] = join(low.values, nullptr);
      }
      spread_scales(scale.values, nullptr, found.scales);
      return found;
    }
  }

  // Of groups g .. g + kElements - 1, an element each, zero beyond the last.
  Floats minima(int64_t r, int64_t g) const {
    const char* at = row(r);
    const char* minimum = at + starts.minimum + g * kPlanes.minimum;
    if constexpr (kSupers) {
      return load_minima(reinterpret_cast<const uint8_t*>(minimum),
                         at + starts.super_minimum + g * kGroup / kSuper * kPlanes.super,
                         cols / kGroup - g);
    } else {
      return load_minima(minimum, cols / kGroup - g);
    }
  }

  static Floats accumulate(const Left& w, const char* token, int64_t k, Floats acc) {
    const char* block = token + k / Tokens::kStep * Tokens::kTokenStepBytes;
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b, block += Tokens::kTokenStepBytes) {
      acc = accumulate_block(w.codes[b], w.scales + b, block, acc);
    }
    return acc;
  }

 private:
  static_assert(kMinima || kPlanes.bias == (kHalfScales ? 8 << 2 : 8 << 1));

  static Floats accumulate_block(const Codes& codes, const Floats* scales, const char* block,
                                 Floats acc) {
    const Bytes low = load_bytes(block), high = load_bytes(block + Tokens::kVector);
    const Floats scale = load(reinterpret_cast<const float*>(block + 2 * Tokens::kVector));
    const auto starts = [&] {
      return load_ints(reinterpret_cast<const int32_t*>(block + 3 * Tokens::kVector));
    };
    if constexpr (kHalfScales) {
      // Each half has its own scale, but `starts` is the sum of both: the first half's part of it
      // is taken from the one and given to the other. It is the same for all rows.
      const Ints part = dot<Int4>(none(), every(kPlanes.bias), low);
      const Ints both = doubled<2>(starts());
      const Ints first = sub(dot<Int4>(none(), codes.low, low), part);
      const Ints second = dot<Int4>(add(both, part), codes.high, high);
      return fma(fma(to_float(first), scales[0], mul(to_float(second), scales[1])), scale, acc);
    } else {
      Ints sum = none();
      if constexpr (!kMinima) sum = doubled<1>(starts());
      sum = dot<Int4>(dot<Int4>(sum, codes.low, low), codes.high, high);
      return fma(to_float(sum), mul(scales[0], scale), acc);
    }
  }

  static Codes join(const char* low, [[maybe_unused]] const char* high) {
    if constexpr (kPlanes.high == 0) {
      return load_nibbles(low);
    } else if constexpr (kPlanes.high == 4) {
      return add_fifth_bits(load_nibbles(low), high);
    } else {
      return add_upper_bits(load_nibbles(low), high);
    }
  }

  static void spread_scales(const char* scale, [[maybe_unused]] const char* super,
                            Floats (&out)[kScales]) {
    if constexpr (kHalfScales) {
      spread_halves(reinterpret_cast<const int8_t*>(scale), super, out);
    } else if constexpr (kSupers) {
      spread_bytes(reinterpret_cast<const uint8_t*>(scale), super, out);
    } else {
      out[0] = spread(reinterpret_cast<const uint16_t*>(scale));
    }
  }
};

}  // namespace monolane::MONOLANE_ISA
