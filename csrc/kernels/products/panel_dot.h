// Products of panels (panels.h) with tokens quantised to int8.
//
// A *unit* is as many rows of a panel as a vector has elements. Codes stay unsigned, as stored;
// what they have too much is cancelled by where the integer sums begin. A sum over a group is
// exact, of fine groups (panels.h) from two sums; then it is scaled and added in float, group after
// group: neither the set's vectors, nor where a call begins or ends, enters the order.
//
// Vector operations with AVX-512 for 32 columns of 16 rows and one token: 8 dots, a conversion, two
// products, and for a fine group 10 more; before them, once for all tokens, those that bring the
// codes and scales out of memory: of int4 12 and 1, of q4_k 12 and 8, of q6_k 28 and 5, of int8 0
// and 1.
#pragma once

#include <bit>
#include <utility>

#include "kernels/products/multiply.h"
#include "kernels/products/panels.h"

namespace monolane::MONOLANE_ISA {

constexpr int kUnits = static_cast<int>(kPanelRows) / kElements;
constexpr int kQuads = kGroup / 4;  // vectors of codes of a group

// f(0), f(1), ... as constants.
template <int N, class F>
MONOLANE_INLINE static inline void each(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) MONOLANE_INLINE {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, N>());
}

#ifdef MONOLANE_PAIR_SUMS
// The largest of the unsigned numbers that are multiplied; those of 8 bits in halves.
constexpr int largest_number(Format format) {
  const Planes planes = planes_of(format);
  if (planes.bias == 128) return 15;
  if (has_numbers(format)) {
    int largest = 0;
    for (const int number : numbers_of(format)->all) largest = std::max(largest, number);
    return format == Format::kQ3Kp ? largest_number(Format::kIq2p) : largest;
  }
  return (1 << (planes.low / 4 + planes.high / 4)) - 1;
}

// Pairs of products whose sum fits 16 bits, of so many: 8 of numbers up to 15, 4 up to 31, 2 up to
// 63.
constexpr int pair_sums(Format format, int pairs) {
  while (pairs * 2 * 127 * largest_number(format) > 32767) pairs /= 2;
  return pairs;
}
#endif

// What a row brings to a group beside its codes: one scale, or those of columns 0..15 and 16..31,
// and as many minima or none. Of a unit each.
template <int kScales, int kMins>
struct GroupScales {
  static constexpr int kParts = kScales;  // sums of a group
  static constexpr int kMinima = kMins;
  Floats scales[kScales];
  Floats minima[kMins == 0 ? 1 : kMins];
};

// A group's sum, or those of its halves, scaled and added. `Token`: TokenGroup, or what has the
// scale and the sum of each element's token in vectors.
template <int kScales, int kMinima, class Token>
static inline Floats add_parts(const GroupScales<kScales, kMinima>& w, const Token& x,
                               const Ints* sums, Floats acc) {
  if constexpr (kScales == 2) {
    const Floats second = mul(to_float(sums[1]), w.scales[1]);
    acc = fma(fma(to_float(sums[0]), w.scales[0], second), splat(x.scale), acc);
    if constexpr (kMinima == 2) {
      acc = fma(w.minima[0], splat(x.half_sum(0)), acc);
      acc = fma(w.minima[1], splat(x.half_sum(1)), acc);
    }
  } else {
    acc = fma(to_float(sums[0]), mul(w.scales[0], splat(x.scale)), acc);
    if constexpr (kMinima > 0) acc = fma(w.minima[0], splat(x.sum), acc);
  }
  return acc;
}

// Where the sum of part `part` of kParts begins, of codes that have kBias too much.
template <int kParts, int kBias>
static inline Ints start(const TokenGroup& x, int part) {
  if constexpr (kBias == 0) return splat(int32_t{0});
  if constexpr (kParts == 2 && kBias % 32 == 0) return splat(x.minus_32[part] * (kBias / 32));
  if constexpr (kParts == 2) return splat((x.minus_32[part] >> 5) * kBias);
  static_assert(kParts == 2 || kBias == 0 || kBias == 8 || kBias == 16 || kBias == 128);
  return splat(kBias == 8 ? x.minus_8 : kBias == 16 ? x.minus_16 : x.minus_128);
}

#ifndef MONOLANE_PAIR_SUMS
// Sums of a unit's group by a token, of all columns or of their halves. kWide: dot's.
template <int kParts, int kBias, bool kWide>
struct GroupSums {
  MONOLANE_INLINE static void find(const Bytes (&codes)[kQuads], const TokenGroup& x,
                                   Ints (&sums)[kParts]) {
    sum_codes(codes, x, sums);
    if (x.rest != 0) [[unlikely]] {
      Ints rest[kParts];
      sum_codes(codes, x.left_over(), rest);
      each<kParts>([&](auto part)
                       MONOLANE_INLINE { sums[part] = join_sums(sums[part], rest[part]); });
    }
  }

 private:
  MONOLANE_INLINE static void sum_codes(const Bytes (&codes)[kQuads], const TokenGroup& x,
                                        Ints (&sums)[kParts]) {
    constexpr int kCount = kQuads / kParts;
    each<kParts>([&](auto part) MONOLANE_INLINE {
      const Ints from = start<kParts, kBias>(x, part);
      sums[part] = dots<part * kCount, (part + 1) * kCount>(codes, x, from);
    });
  }

  template <int kBegin, int kEnd>
  static Ints dots(const Bytes (&codes)[kQuads], const TokenGroup& x, Ints sum) {
#ifdef MONOLANE_LANE_DOTS
    each<kEnd - kBegin>([&](auto at) MONOLANE_INLINE {
      sum = dot_lane<kWide, kBegin + at>(sum, codes[kBegin + at], x.codes);
    });
#else
#pragma GCC unroll 8
    for (int q = kBegin; q < kEnd; ++q) sum = dot<kWide>(sum, codes[q], x.codes + 4 * q);
#endif
    return sum;
  }
};
#endif

template <Format kFormat>
struct PanelDot {
  static constexpr Format kOf = kFormat;
  static constexpr Planes kPlanes = planes_of(kFormat);
  static constexpr bool kSupers = kPlanes.super > 0;
  static constexpr bool kHalfScales = kPlanes.scale == 2 * kPlanes.number;  // of 16 columns
  static constexpr bool kHalfMinima = kHalfScales && kPlanes.super == 4;    // beside them in bytes
  static constexpr bool kMinima = kPlanes.minimum > 0 || kHalfMinima;
  static constexpr bool kBytes = kPlanes.low == 32;   // codes of 8 bits
  static constexpr bool kWide = kPlanes.bias == 128;  // numbers of 8 bits, codes or named by them
  static constexpr int kStartBias = kWide && kSignedBytes ? 0 : kPlanes.bias;
  static constexpr int kParts = kHalfScales ? 2 : 1;  // sums of a group
  static constexpr int kMinimumParts = kHalfMinima ? 2 : 1;
  static constexpr bool kE2m1 = kFormat == Format::kMxfp4p || kFormat == Format::kNvfp4p;
  static constexpr bool kNumbers = has_numbers(kFormat) && !kE2m1;  // by the matrix
  static constexpr bool kExponents = kFormat == Format::kMxfp4p;    // scales are powers of two
  static constexpr bool kE4m3 = kFormat == Format::kNvfp4p;         // scales are these
  static_assert(kFineSteps == 128);                                 // as join_sums has it
#ifdef MONOLANE_PAIR_SUMS
  static constexpr int kPairSums = pair_sums(kFormat, kQuads / kParts);
#endif
  static constexpr int64_t kUnitBytes = kElements * 4;  // of a vector of codes
  static constexpr int64_t kSuperGroups = kSupers ? kSuper / kGroup : 1;
  static constexpr int64_t kGroupBytes =  // of a panel, without supers
      kPanelRows * (kPlanes.low + kPlanes.high + kPlanes.scale + kPlanes.minimum);
  static constexpr int64_t kSuperBytes = kPanelRows * kPlanes.super;
  static constexpr int64_t kRecord = record_groups(kFormat);  // groups of a whole record
  static_assert(kSuperGroups == 1 || kSuperGroups % kRecord == 0);
  static_assert(kBlockGroups % kSuperGroups == 0 && kBlockGroups % kRecord == 0);

  using Scales = GroupScales<kParts, kMinima ? kMinimumParts : 0>;

  const char* data;
  int64_t panels, groups;
  const Numbers* numbers;

  explicit PanelDot(const Matrix& w)
      : data(static_cast<const char*>(w.data)),
        panels((w.rows + kPanelRows - 1) / kPanelRows),
        groups(w.cols / kGroup),
        numbers(numbers_of(w.format)) {}

  int64_t cols() const { return groups * kGroup; }
  const char* at(int64_t p, int64_t g) const {
    return data + group_at(kFormat, panels, groups, p, g);
  }

  // The supers of 256 columns, of the scales and of the minima.
  void load_supers(const char* from, int unit, Floats (&supers)[2]) const {
    if constexpr (kSupers) {
      const auto* scales = reinterpret_cast<const F16*>(from) + unit * kElements;
      supers[0] = load(scales);
      if constexpr (kNumbers) supers[0] = mul(supers[0], splat(numbers->unit));
      if constexpr (kMinima) supers[1] = load(scales + kPanelRows);
    }
  }

  // Group g of a record of `groups`, of U units by T tokens, each `stride` bytes after the one
  // before, which begins at `x`.
  template <int U, int T>
  MONOLANE_INLINE void add_group(const char* record, int64_t groups, int unit, int64_t g,
                                 const Floats (&supers)[U][2], const char* x, int64_t stride,
                                 Floats (&acc)[U][T]) const {
    const char* low = record + g * kPanelRows * kPlanes.low + unit * kUnitBytes;
    const char* rest = record + groups * kPanelRows * kPlanes.low;
    const char* high = rest + g * kPanelRows * kPlanes.high + unit * kUnitBytes;
    const char* behind = rest + groups * kPanelRows * kPlanes.high;
#ifdef MONOLANE_PAIR_SUMS
    Ints sums[kParts][U][T];
    sum_group<U, T>(low, high, x, stride, sums);
    each<T>([&](auto t) MONOLANE_INLINE {
      const TokenGroup& group = token(x, stride, t);
      if (group.rest == 0) [[likely]]
        return;
      Ints rest[kParts][U][1];
      sum_group<U, 1>(low, high, reinterpret_cast<const char*>(&group.left_over()), 0, rest);
      each<U>([&](auto u) MONOLANE_INLINE {
        each<kParts>([&](auto part) MONOLANE_INLINE {
          sums[part][u][t] = join_sums(sums[part][u][t], rest[part][u][0]);
        });
      });
    });
    each<U>([&](auto u) MONOLANE_INLINE {
      const Scales w = scales(behind, groups, unit + u, g, supers[u]);
      each<T>([&](auto t) MONOLANE_INLINE {
        const Ints parts[] = {sums[0][u][t], sums[kParts - 1][u][t]};
        acc[u][t] = add_parts(w, token(x, stride, t), parts, acc[u][t]);
      });
    });
#else
    each<U>([&](auto u) MONOLANE_INLINE {
      const Scales w = scales(behind, groups, unit + u, g, supers[u]);
      Bytes codes[kQuads];
      each<kQuads>([&](auto quad) MONOLANE_INLINE {
        codes[quad] =
            to_numbers(load_quad<quad>(low + u * kUnitBytes, high + u * kUnitBytes), numbers);
      });
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const TokenGroup& group = token(x, stride, t);
        Ints sums[kParts];
        GroupSums<kParts, kStartBias, kWide>::find(codes, group, sums);
        acc[u][t] = add_parts(w, group, sums, acc[u][t]);
      }
    });
#endif
  }

  // Group g of a record of `groups`, brought out of memory: its codes as numbers with kTooMuch, a
  // vector of four columns at codes[c / 4] + 4 times the unit's first row, and what it brings
  // beside them.
  template <int kTooMuch>
  Scales bring_group(const char* record, int64_t groups, int unit, int64_t g,
                     const Floats (&supers)[2], int8_t (*codes)[kPanelRows * 4]) const {
    const char* low = record + g * kPanelRows * kPlanes.low + unit * kUnitBytes;
    const char* rest = record + groups * kPanelRows * kPlanes.low;
    const char* high = rest + g * kPanelRows * kPlanes.high + unit * kUnitBytes;
    each<kQuads>([&](auto quad) MONOLANE_INLINE {
      typedef uint8_t Codes __attribute__((vector_size(sizeof(Bytes))));
      const Codes found = std::bit_cast<Codes>(to_numbers(load_quad<quad>(low, high), numbers)) -
                          static_cast<uint8_t>(kPlanes.bias - kTooMuch);
      std::memcpy(codes[quad] + unit * kUnitBytes, &found, sizeof found);
    });
    return scales(rest + groups * kPanelRows * kPlanes.high, groups, unit, g, supers);
  }

 private:
  static const TokenGroup& token(const char* x, int64_t stride, int t) {
    return *reinterpret_cast<const TokenGroup*>(x + t * stride);
  }

  // Group g's, of a record's scales, and of its minima behind them.
  static Scales scales(const char* from, int64_t groups, int unit, int64_t g,
                       const Floats (&supers)[2]) {
    Scales found;
    const char* scale = from + g * kPanelRows * kPlanes.scale;
    const char* minimum = from + kPanelRows * (groups * kPlanes.scale + g * kPlanes.minimum);
    if constexpr (kHalfMinima) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(scale) + unit * kElements;
      each<2>([&](auto half) MONOLANE_INLINE {
        const uint8_t* at = bytes + half * kPanelRows;
        found.scales[half] = mul(supers[0], load_nibbles_as_floats<false>(at));
        found.minima[half] = mul(supers[1], load_nibbles_as_floats<true>(at));
      });
    } else if constexpr (kE4m3) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(scale) + unit * kElements;
      const Floats unit_of_both = splat(0x1p8f * kE2m1Numbers.unit);
      found.scales[0] = mul(load_bytes_as_halves(bytes), unit_of_both);
      found.scales[1] = mul(load_bytes_as_halves(bytes + kPanelRows), unit_of_both);
    } else if constexpr (kHalfScales) {
      const auto* bytes = reinterpret_cast<const int8_t*>(scale) + unit * kElements;
      found.scales[0] = mul(supers[0], load_bytes_as_floats(bytes));
      found.scales[1] = mul(supers[0], load_bytes_as_floats(bytes + kPanelRows));
    } else if constexpr (kSupers && !kMinima) {
      const auto* bytes = reinterpret_cast<const int8_t*>(scale) + unit * kElements;
      found.scales[0] = mul(supers[0], load_bytes_as_floats(bytes));
    } else if constexpr (kSupers) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(scale) + unit * kElements;
      found.scales[0] = mul(supers[0], load_bytes_as_floats(bytes));
    } else if constexpr (kExponents) {
      found.scales[0] = load_exponents(reinterpret_cast<const uint8_t*>(scale) + unit * kElements);
    } else {
      found.scales[0] = load(reinterpret_cast<const F16*>(scale) + unit * kElements);
    }
    if constexpr (kHalfMinima) {
      return found;
    } else if constexpr (kMinima && kSupers) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(minimum) + unit * kElements;
      found.minima[0] = mul(supers[1], load_bytes_as_floats(bytes));
    } else if constexpr (kMinima) {
      found.minima[0] = load(reinterpret_cast<const F16*>(minimum) + unit * kElements);
    }
    return found;
  }

#ifdef MONOLANE_PAIR_SUMS
  template <int U, int T>
  MONOLANE_INLINE void sum_group(const char* low, const char* high, const char* x, int64_t stride,
                                 Ints (&sums)[kParts][U][T]) const {
    each<kParts>([&](auto part) MONOLANE_INLINE {
      constexpr int kCount = kQuads / kParts;
      sum_pairs<U, T, part * kCount, (part + 1) * kCount>(low, high, x, stride, sums[part]);
    });
    if constexpr (kWide) {
      Ints more[U][T];
      sum_pairs<U, T, 0, kQuads, 16>(low, high, x, stride, more);
      each<U>([&](auto u) MONOLANE_INLINE {
        each<T>([&](auto t)
                    MONOLANE_INLINE { sums[0][u][t] = add_sums(sums[0][u][t], more[u][t]); });
      });
    }
  }

  // Sums of the columns of quads kBegin .. kEnd - 1. Four columns of activations are brought to all
  // elements once for all units; codes are brought out of memory where they are needed and meet all
  // tokens: 16 registers do not hold those of a whole group. Codes of 8 bits are two of 4, of which
  // the high ones count 16 times (kTimes): 16 products and 14 additions in 16 bits. To multiply
  // |w| by x with w's sign, and widen each pair, is 32 operations, too, but 24 of them by the two
  // ports that multiply, of four.
  template <int U, int T, int kBegin, int kEnd, int kTimes = 1>
  MONOLANE_INLINE void sum_pairs(const char* low, const char* high, const char* x, int64_t stride,
                                 Ints (&sums)[U][T]) const {
    [[maybe_unused]] const Numbers* table = numbers;  // in a register: `this` is memory
    Pair pairs[U][T];
    // By constants, not loops: so the arrays are registers before anything is unrolled.
    each<kEnd - kBegin>([&](auto at) MONOLANE_INLINE {
      constexpr int quad = kBegin + at;
      Bytes codes[U];
      each<U>([&](auto u) MONOLANE_INLINE {
        codes[u] = load_quad<quad>(low + u * kUnitBytes, high + u * kUnitBytes);
        if constexpr (kBytes) {
          codes[u] = kTimes == 16 ? high_nibbles(codes[u]) : low_nibbles(codes[u]);
        } else if constexpr (kWide) {
          codes[u] = look_up(codes[u], kTimes == 16 ? table->high : table->low);
        } else {
          codes[u] = to_numbers(codes[u], table);
        }
      });
      each<T>([&](auto t) MONOLANE_INLINE {
        const Bytes four = splat_four(token(x, stride, t).codes + 4 * quad);
        each<U>([&](auto u) MONOLANE_INLINE {
          const Pair found = multiply_pairs(codes[u], four);
          pairs[u][t] = at % kPairSums == 0 ? found : add_pairs(pairs[u][t], found);
          if constexpr (at + 1 == kPairSums) {
            sums[u][t] = widen_pairs<kTimes>(pairs[u][t]);
          } else if constexpr ((at + 1) % kPairSums == 0) {
            sums[u][t] = add_sums(sums[u][t], widen_pairs<kTimes>(pairs[u][t]));
          }
        });
      });
      // Or the compiler reads the activations of many columns ahead, and spills them.
      if constexpr (U * T > 1) asm volatile("" ::: "memory");
    });
    if constexpr (kTimes > 1) return;
    each<T>([&](auto t) MONOLANE_INLINE {
      const TokenGroup& group = token(x, stride, t);
      const Ints more = start<kParts, kStartBias>(group, kBegin * kParts / kQuads);
      each<U>([&](auto u) MONOLANE_INLINE { sums[u][t] = add_sums(sums[u][t], more); });
    });
  }
#endif

  // The codes of columns 4 kQuad .. 4 kQuad + 3.
  template <int kQuad>
  static Bytes load_quad(const char* low, [[maybe_unused]] const char* high) {
    constexpr int64_t kStride = kPanelRows * 4;  // from four columns to the next
    if constexpr (kPlanes.low == 8) {
      constexpr int kPairOfBits = kQuad / 2;
      const Bytes pairs = join<-2 * kPairOfBits, 3>(Bytes{}, load_bytes(low + kQuad % 2 * kStride));
      if constexpr (kPlanes.high == 0) return pairs;
      return join<2 - kQuad, 4>(pairs, load_bytes(high));
    }
    constexpr int kHalf = kQuads / 2, kByte = kBytes ? kQuad : kQuad % kHalf;
    constexpr bool kHigh = kQuad >= kHalf;  // its nibble
    const Bytes stored = load_bytes(low + kByte * kStride);
    if constexpr (kBytes) return stored;
    const Bytes nibbles = kHigh ? high_nibbles(stored) : low_nibbles(stored);
    if constexpr (kPlanes.high == 4) {
      return join<(kHigh ? 0 : 4) - kByte, 0x10>(nibbles, load_bytes(high));
    } else if constexpr (kPlanes.high == 8) {
      return join<(kHigh ? 0 : 4) - kByte % 2 * 2, 0x30>(nibbles,
                                                         load_bytes(high + kByte / 2 * kStride));
    }
    return nibbles;
  }

  // What codes stand for, plus the bias.
  static Bytes to_numbers(Bytes codes, [[maybe_unused]] const Numbers* table) {
    if constexpr (kE2m1) return look_up(codes, kE2m1Numbers.all);
    if constexpr (kNumbers) return look_up(codes, table->all);
    return codes;
  }
};

}  // namespace monolane::MONOLANE_ISA
