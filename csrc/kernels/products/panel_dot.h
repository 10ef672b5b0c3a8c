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

template <Format kFormat>
struct PanelDot {
  static constexpr Format kOf = kFormat;
  static constexpr Planes kPlanes = planes_of(kFormat);
  static constexpr bool kMinima = kPlanes.minimum > 0;
  static constexpr bool kSupers = kPlanes.super > 0;
  static constexpr bool kHalfScales = kSupers && !kMinima;      // scales of 16 columns
  static constexpr bool kBytes = kPlanes.low == 32;             // codes of 8 bits
  static constexpr int kParts = kHalfScales ? 2 : 1;            // sums of a group
  static constexpr bool kNumbers = kFormat == Format::kMxfp4p;  // codes name numbers of a table
  static constexpr bool kExponents = kNumbers;                  // scales are powers of two
  static_assert(!kHalfScales || kPlanes.bias == 32);
  static_assert(kFineSteps == 128);  // as join_sums has it
#ifdef MONOLANE_PAIR_SUMS
  // Pairs of products whose sum fits 16 bits: 8 of codes up to 15 (or nibbles of codes of 8 bits),
  // 4 up to 31, 2 up to 63.
  static constexpr int kPairSums = kNumbers ? 4 : 8 >> kPlanes.high / 4;
  static_assert(!kNumbers || kPairSums * 2 * 127 * 28 <= 32767);
  static_assert(kPairSums * 2 * 127 * ((16 << kPlanes.high / 4) - 1) <= 32767);
#endif
  static constexpr int64_t kUnitBytes = kElements * 4;  // of a vector of codes
  static constexpr int64_t kSuperGroups = kSupers ? kSuper / kGroup : 1;
  static constexpr int64_t kGroupBytes =  // of a panel, without supers
      kPanelRows * (kPlanes.low + kPlanes.high + kPlanes.scale + kPlanes.minimum);
  static constexpr int64_t kSuperBytes = kPanelRows * kPlanes.super * (kMinima ? 2 : 1);
  static constexpr int64_t kRecord = record_groups(kFormat);  // groups of a whole record
  static_assert(kSuperGroups == 1 || kSuperGroups % kRecord == 0);
  static_assert(kBlockGroups % kSuperGroups == 0 && kBlockGroups % kRecord == 0);

  // What a unit brings to a group beside its codes.
  struct Scales {
    Floats scales[kParts];
    Floats minimum;
  };

  const char* data;
  int64_t panels, groups;

  explicit PanelDot(const Matrix& w)
      : data(static_cast<const char*>(w.data)),
        panels((w.rows + kPanelRows - 1) / kPanelRows),
        groups(w.cols / kGroup) {}

  int64_t cols() const { return groups * kGroup; }
  const char* at(int64_t p, int64_t g) const {
    return data + group_at(kFormat, panels, groups, p, g);
  }

  // The supers of 256 columns, of the scales and of the minima.
  static void load_supers(const char* from, int unit, Floats (&supers)[2]) {
    if constexpr (kSupers) {
      const auto* scales = reinterpret_cast<const F16*>(from) + unit * kElements;
      supers[0] = load(scales);
      if constexpr (kMinima) supers[1] = load(scales + kPanelRows);
    }
  }

  // Group g of a record of `groups`, of U units by T tokens, each `stride` bytes after the one
  // before, which begins at `x`.
  template <int U, int T>
  MONOLANE_INLINE static void add_group(const char* record, int64_t groups, int unit, int64_t g,
                                        const Floats (&supers)[U][2], const char* x, int64_t stride,
                                        Floats (&acc)[U][T]) {
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
        codes[quad] = load_quad<quad>(low + u * kUnitBytes, high + u * kUnitBytes);
      });
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const TokenGroup& group = token(x, stride, t);
        Ints sums[kParts];
        sum_group(codes, group, sums);
        if (group.rest != 0) [[unlikely]] {
          Ints rest[kParts];
          sum_group(codes, group.left_over(), rest);
          each<kParts>([&](auto part)
                           MONOLANE_INLINE { sums[part] = join_sums(sums[part], rest[part]); });
        }
        acc[u][t] = add_parts(w, group, sums, acc[u][t]);
      }
    });
#endif
  }

  // The sum of a group, or those of columns 0..15 and 16..31, which have a scale each.
  // `Token`: TokenGroup, or what has the scale and the sum of each element's token in vectors.
  template <class Token>
  static Floats add_parts(const Scales& w, const Token& x, const Ints* sums, Floats acc) {
    if constexpr (kHalfScales) {
      const Floats second = mul(to_float(sums[1]), w.scales[1]);
      return fma(fma(to_float(sums[0]), w.scales[0], second), splat(x.scale), acc);
    }
    acc = fma(to_float(sums[0]), mul(w.scales[0], splat(x.scale)), acc);
    if constexpr (kMinima) acc = fma(w.minimum, splat(x.sum), acc);
    return acc;
  }

  // Group g of a record of `groups` for products of tiles: its codes as signed numbers, a vector of
  // four columns at codes[c / 4] + 4 times the unit's first row, and what it brings beside them.
  static Scales bring_group(const char* record, int64_t groups, int unit, int64_t g,
                            const Floats (&supers)[2], int8_t (*codes)[kPanelRows * 4]) {
    const char* low = record + g * kPanelRows * kPlanes.low + unit * kUnitBytes;
    const char* rest = record + groups * kPanelRows * kPlanes.low;
    const char* high = rest + g * kPanelRows * kPlanes.high + unit * kUnitBytes;
    each<kQuads>([&](auto quad) MONOLANE_INLINE {
      typedef uint8_t Codes __attribute__((vector_size(sizeof(Bytes))));
      const Codes signed_codes =
          std::bit_cast<Codes>(load_quad<quad>(low, high)) - static_cast<uint8_t>(kPlanes.bias);
      std::memcpy(codes[quad] + unit * kUnitBytes, &signed_codes, sizeof signed_codes);
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
    if constexpr (kHalfScales) {
      const auto* bytes = reinterpret_cast<const int8_t*>(scale) + unit * kElements;
      found.scales[0] = mul(supers[0], load_bytes_as_floats(bytes));
      found.scales[1] = mul(supers[0], load_bytes_as_floats(bytes + kPanelRows));
    } else if constexpr (kSupers) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(scale) + unit * kElements;
      found.scales[0] = mul(supers[0], load_bytes_as_floats(bytes));
    } else if constexpr (kExponents) {
      found.scales[0] = load_exponents(reinterpret_cast<const uint8_t*>(scale) + unit * kElements);
    } else {
      found.scales[0] = load(reinterpret_cast<const F16*>(scale) + unit * kElements);
    }
    if constexpr (kMinima && kSupers) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(minimum) + unit * kElements;
      found.minimum = mul(supers[1], load_bytes_as_floats(bytes));
    } else if constexpr (kMinima) {
      found.minimum = load(reinterpret_cast<const F16*>(minimum) + unit * kElements);
    }
    return found;
  }

  static Ints start(const TokenGroup& x) {
    if constexpr (kBytes && kSignedBytes) return splat(int32_t{0});
    switch (kPlanes.bias) {
      case 8:
        return splat(x.minus_8);
      case 16:
        return splat(x.minus_16);
      case 128:
        return splat(x.minus_128);
      default:
        return splat(int32_t{0});
    }
  }

#ifdef MONOLANE_PAIR_SUMS
  template <int U, int T>
  MONOLANE_INLINE static void sum_group(const char* low, const char* high, const char* x,
                                        int64_t stride, Ints (&sums)[kParts][U][T]) {
    each<kParts>([&](auto part) MONOLANE_INLINE {
      constexpr int kCount = kQuads / kParts;
      sum_pairs<U, T, part * kCount, (part + 1) * kCount>(low, high, x, stride, sums[part]);
    });
    if constexpr (kBytes) {
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
  MONOLANE_INLINE static void sum_pairs(const char* low, const char* high, const char* x,
                                        int64_t stride, Ints (&sums)[U][T]) {
    Pair pairs[U][T];
    // By constants, not loops: so the arrays are registers before anything is unrolled.
    each<kEnd - kBegin>([&](auto at) MONOLANE_INLINE {
      constexpr int quad = kBegin + at;
      Bytes codes[U];
      each<U>([&](auto u) MONOLANE_INLINE {
        codes[u] = load_quad<quad>(low + u * kUnitBytes, high + u * kUnitBytes);
        if constexpr (kBytes) {
          codes[u] = kTimes == 16 ? high_nibbles(codes[u]) : low_nibbles(codes[u]);
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
      const Ints more = kHalfScales ? splat(group.minus_32[kBegin / (kQuads / 2)]) : start(group);
      each<U>([&](auto u) MONOLANE_INLINE { sums[u][t] = add_sums(sums[u][t], more); });
    });
  }
#else
  MONOLANE_INLINE static void sum_group(const Bytes (&codes)[kQuads], const TokenGroup& x,
                                        Ints (&sums)[kParts]) {
    if constexpr (kHalfScales) {
      sums[0] = dots<0, kQuads / 2>(codes, x, splat(x.minus_32[0]));
      sums[1] = dots<kQuads / 2, kQuads>(codes, x, splat(x.minus_32[1]));
    } else {
      sums[0] = dots<0, kQuads>(codes, x, start(x));
    }
  }

  template <int kBegin, int kEnd>
  static Ints dots(const Bytes (&codes)[kQuads], const TokenGroup& x, Ints sum) {
#ifdef MONOLANE_LANE_DOTS
    each<kEnd - kBegin>([&](auto at) MONOLANE_INLINE {
      sum = dot_lane<kBytes, kBegin + at>(sum, codes[kBegin + at], x.codes);
    });
#else
#pragma GCC unroll 8
    for (int q = kBegin; q < kEnd; ++q) sum = dot<kBytes>(sum, codes[q], x.codes + 4 * q);
#endif
    return sum;
  }
#endif

  // The codes of columns 4 kQuad .. 4 kQuad + 3.
  template <int kQuad>
  static Bytes load_quad(const char* low, [[maybe_unused]] const char* high) {
    constexpr int64_t kStride = kPanelRows * 4;  // from four columns to the next
    constexpr int kHalf = kQuads / 2, kByte = kBytes ? kQuad : kQuad % kHalf;
    constexpr bool kHigh = kQuad >= kHalf;  // its nibble
    const Bytes stored = load_bytes(low + kByte * kStride);
    if constexpr (kBytes) return stored;
    const Bytes nibbles = kHigh ? high_nibbles(stored) : low_nibbles(stored);
    if constexpr (kNumbers) return look_up(nibbles, kMxfp4Numbers);
    if constexpr (kPlanes.high == 4) {
      return join<(kHigh ? 0 : 4) - kByte, 0x10>(nibbles, load_bytes(high));
    } else if constexpr (kPlanes.high == 8) {
      return join<(kHigh ? 0 : 4) - kByte % 2 * 2, 0x30>(nibbles,
                                                         load_bytes(high + kByte / 2 * kStride));
    }
    return nibbles;
  }
};

// A block, or the panels of it that have rows that are wanted: first .. last - 1 of all panels, and
// their groups begin .. end - 1.
struct Block {
  int64_t first, last;
  int64_t begin, end;
};

constexpr int kUnitTokens = 8;  // times units: up to which units are taken together

// U units of a panel in a block, by T tokens. `before` and `after`: [U, T, kElements], sums of the
// columns before the block, and with it.
template <class Dot, int U, int T, Fetch kFetch>
static inline void panel_tile(const Dot& dot, const Block& block, int64_t p, int unit,
                              const char* tokens, int64_t token_stride, Stream& stream,
                              const float* before, float* after) {
  Floats acc[U][T];
  each<U>([&](auto u) MONOLANE_INLINE {
    each<T>([&](auto t) MONOLANE_INLINE { acc[u][t] = load(before + (u * T + t) * kElements); });
  });
  if constexpr (kFetch == Fetch::kParts) fetch<kFetch>(stream, stream.part);
  Stream ahead = stream;  // a copy: it stays in a register
  Floats supers[U][2];
  const char* from = dot.at(p, block.begin);
  const int64_t groups = block.end;
  for (int64_t g = block.begin; g < groups;) {
    if constexpr (Dot::kSupers) {
      each<U>([&](auto u) MONOLANE_INLINE { dot.load_supers(from, unit + u, supers[u]); });
      if constexpr (kFetch == Fetch::kAhead) fetch<kFetch>(ahead, Dot::kSuperBytes);
      from += Dot::kSuperBytes;
    }
    const int64_t end = Dot::kSupers ? g + Dot::kSuperGroups : groups;
    while (g < end) {
      const int64_t count = Dot::kSupers ? Dot::kRecord : std::min(Dot::kRecord, end - g);
      for (int64_t i = 0; i < count; ++i, ++g) {
        if constexpr (kFetch == Fetch::kAhead) fetch<kFetch>(ahead, Dot::kGroupBytes);
        const char* x = tokens + g * static_cast<int64_t>(sizeof(TokenGroup));
        dot.template add_group<U, T>(from, count, unit, i, supers, x, token_stride, acc);
      }
      from += count * Dot::kGroupBytes;
    }
  }
  stream = ahead;
  each<U>([&](auto u) MONOLANE_INLINE {
    each<T>([&](auto t) MONOLANE_INLINE { store(after + (u * T + t) * kElements, acc[u][t]); });
  });
}

// Whether one token's panels are read faster without prefetches: by Zen 4 with vectors of 16
// numbers. One core, 2,048 columns, GB/s, without and 8 KB ahead: q8_0 31.2 and 20.5, q4_k 29.3
// and 23.1, q6_k 25.0 and 22.5. Two tokens or more take 10 to 60 % longer without, and so do AVX2's
// vectors. By the family, which is Zen 3's, too: gcc 12 does not know Zen 4 by name.
static inline bool follows_panels() {
#if defined(__x86_64__)
  return kElements == 16 && __builtin_cpu_is("amdfam19h");
#else
  return false;
#endif
}

// The rows begin .. end - 1, which a call wants.
struct Rows {
  int64_t begin, end;
};

// Wanted rows of the unit that begins at row `first`.
template <int T>
static inline void put_rows(const float (&from)[T][kElements], int64_t first, const Rows& rows,
                            Output out) {
  const int64_t low = std::max(first, rows.begin), high = std::min(first + kElements, rows.end);
  if (low >= high) return;
  for (int t = 0; t < T; ++t) {
    float* y = out.y + t * out.stride + (low - rows.begin);
    if (high - low == kElements) {
      store(y, load(from[t]));
    } else {
      std::copy(from[t] + (low - first), from[t] + (high - first), y);
    }
  }
}

// Where sums go: between two blocks of a band aside, [kUnits, T, kElements] of each panel, `stride`
// floats apart; after the last one, wanted rows to `out`.
struct Target {
  float* aside;
  int64_t stride;
  Rows rows;
  Output out;

  Target from_token(int64_t t) const {
    return {aside + t * kUnits * kElements, stride, rows, {out.y + t * out.stride, out.stride}};
  }
};

// A block by T tokens.
template <class Dot, int T, Fetch kFetch>
static inline void panel_tiles(const Dot& dot, const Block& block, const char* tokens,
                               Stream& stream, const Target& target) {
  // Units together read all of a panel as it comes from memory; one after the other, the memory
  // waits while all but the first read what is near already.
  constexpr int U = T * kUnits <= kUnitTokens ? kUnits : 1;
  alignas(64) static constexpr float kZeros[U * T * kElements] = {};
  const bool last = block.end == dot.groups;
  for (int64_t p = block.first; p < block.last; ++p) {
    for (int unit = 0; unit < kUnits; unit += U) {
      const int64_t row = p * kPanelRows + unit * kElements;
      if (row >= target.rows.end || row + U * kElements <= target.rows.begin) continue;
      // Anew for each panel: a group's bytes are not whole lines. Further units find it near.
      if constexpr (kFetch == Fetch::kAhead)
        stream.next = dot.at(p, block.begin) + (unit == 0 ? far_ahead() : 0);
      float* aside = target.aside + (p - block.first) * target.stride + unit * T * kElements;
      alignas(64) float y[U][T][kElements];
      panel_tile<Dot, U, T, kFetch>(dot, block, p, unit, tokens, panel_token_bytes(dot.cols()),
                                    stream, block.begin == 0 ? kZeros : aside,
                                    last ? y[0][0] : aside);
      if (!last) continue;
      for (int u = 0; u < U; ++u) put_rows<T>(y[u], row + u * kElements, target.rows, target.out);
    }
  }
}

// The same by up to T tokens, in one pass over the weights.
template <class Dot, int T>
static inline void panel_few(const Dot& dot, const Block& block, const char* tokens, int64_t width,
                             Stream& stream, const Target& target) {
  if constexpr (T > 1) {
    if (width < T) {
      panel_few<Dot, T - 1>(dot, block, tokens, width, stream, target);
      return;
    }
  }
  if constexpr (T == 1) {
    if (follows_panels()) {
      panel_tiles<Dot, T, Fetch::kNone>(dot, block, tokens, stream, target);
      return;
    }
  }
  panel_tiles<Dot, T, Fetch::kAhead>(dot, block, tokens, stream, target);
}

constexpr int kPanelTokens = kRegisters == 32 ? 8 : 4;  // of a tile

// Calls run(block) for all panels that have wanted rows, in the order in which they are stored.
template <class Dot, class Run>
static inline void for_blocks(const Dot& dot, const Rows& rows, const Run& run) {
  const int64_t last = (rows.end + kPanelRows - 1) / kPanelRows;
  for (int64_t p = rows.begin / kPanelRows, next; p < last; p = next) {
    next = std::min(last, (p / kBandPanels + 1) * kBandPanels);
    for (int64_t g = 0; g < dot.groups; g += kBlockGroups) {
      run(Block{p, next, g, std::min(dot.groups, g + kBlockGroups)});
    }
  }
}

// kWidth: the largest width.
template <class Dot, int kWidth>
static inline void panel_blocks(const Dot& dot, const Rows& rows, const char* tokens, int64_t width,
                                Output out) {
  constexpr int T = kPanelTokens;
  alignas(64) float aside[kBandPanels * kUnits * kWidth * kElements];
  const Target target{aside, kUnits * width * kElements, rows, out};
  const int64_t token_bytes = panel_token_bytes(dot.cols());
  Stream stream{nullptr, 0};
  for_blocks(dot, rows, [&](const Block& block) {
    if constexpr (kWidth <= T) {
      panel_few<Dot, T>(dot, block, tokens, width, stream, target);
    } else {
      // The next block in equal parts, one before each tile.
      const int64_t panels = block.last - block.first;
      const int64_t bytes = panels * groups_bytes(Dot::kOf, block.end - block.begin);
      stream.next = dot.at(block.first, block.begin) + bytes;
      stream.part = (bytes / ((width + T - 1) / T * panels * kUnits) + 63) / 64 * 64;
      int64_t t = 0;
      for (; t + T <= width; t += T) {
        panel_tiles<Dot, T, Fetch::kParts>(dot, block, tokens + t * token_bytes, stream,
                                           target.from_token(t));
      }
      if (t == width) return;
      panel_few<Dot, T - 1>(dot, block, tokens + t * token_bytes, width - t, stream,
                            target.from_token(t));
    }
  });
}

template <class Dot>
static void multiply_panels(const Dot& dot, int64_t begin, int64_t end, const void* packed,
                            int64_t width, Output out) {
  const char* tokens = static_cast<const char*>(packed);
  if (width <= kPanelTokens) {
    return panel_blocks<Dot, kPanelTokens>(dot, {begin, end}, tokens, width, out);
  }
  panel_blocks<Dot, kMaxWidth>(dot, {begin, end}, tokens, width, out);
}

}  // namespace monolane::MONOLANE_ISA
