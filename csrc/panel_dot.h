// Products of panels (panels.h) with tokens quantised to int8.
//
// A *unit* is as many rows of a panel as a vector has elements. Codes stay unsigned, as stored;
// what they have too much is cancelled by where the integer sums begin. A sum over a group is
// exact; then it is scaled and added in float, group after group: neither the set's vectors, nor
// where a call begins or ends, enters the order.
//
// Vector operations with AVX-512 for 32 columns of 16 rows and one token: 8 dots, a conversion, two
// products; before them, once for all tokens, those that bring the codes and scales out of
// memory: of int4 12 and 1, of q4_k 12 and 8, of q6_k 28 and 5, of int8 0 and 1.
#pragma once

#include "multiply.h"
#include "panels.h"

namespace monolane::MONOLANE_ISA {

constexpr int kUnits = static_cast<int>(kPanelRows) / kElements;
constexpr int kQuads = kGroup / 4;  // vectors of codes of a group

template <Format kFormat>
struct PanelDot {
  static constexpr Planes kPlanes = planes_of(kFormat);
  static constexpr bool kMinima = kPlanes.minimum > 0;
  static constexpr bool kSupers = kPlanes.super > 0;
  static constexpr bool kHalfScales = kSupers && !kMinima;  // scales of 16 columns
  static constexpr bool kBytes = kPlanes.low == 32;         // codes of 8 bits
  static_assert(!kHalfScales || kPlanes.bias == 32);
  static constexpr int64_t kSuperGroups = kSupers ? kSuper / kGroup : 1;
  static constexpr int64_t kGroupBytes =  // of a panel, without supers
      kPanelRows * (kPlanes.low + kPlanes.high + kPlanes.scale + kPlanes.minimum);
  static constexpr int64_t kSuperBytes = kPanelRows * kPlanes.super * (kMinima ? 2 : 1);

  // What a unit brings to a group.
  struct Left {
    Bytes codes[kQuads];
    Floats scales[kHalfScales ? 2 : 1];
    Floats minimum;
  };

  const char* data;
  int64_t cols;
  PlaneStarts starts;

  explicit PanelDot(const Matrix& w)
      : data(static_cast<const char*>(w.data)),
        cols(w.cols),
        starts(plane_starts(kFormat, w.cols)) {}

  int64_t panel_bytes() const { return kPanelRows * row_bytes(kFormat, cols); }
  const char* panel(int64_t p) const { return data + p * panel_bytes(); }

  // The supers of columns 256 s and on, of the scales and of the minima.
  void load_supers(const char* panel, int unit, int64_t s, Floats (&supers)[2]) const {
    if constexpr (kSupers) {
      const int64_t at = (s * kPanelRows + unit * kElements) * 2;
      supers[0] = load(reinterpret_cast<const F16*>(panel + kPanelRows * starts.super + at));
      if constexpr (kMinima) {
        const char* minima = panel + kPanelRows * starts.super_minimum + at;
        supers[1] = load(reinterpret_cast<const F16*>(minima));
      }
    }
  }

  Left left(const char* panel, int unit, int64_t g, const Floats (&supers)[2]) const {
    Left found;
    const char* low = panel + g * kPanelRows * kPlanes.low + unit * kElements * 4;
    load_codes(low, panel + kPanelRows * (starts.high + g * kPlanes.high) + unit * kElements * 4,
               found.codes);
    const char* scale = panel + kPanelRows * (starts.scale + g * kPlanes.scale);
    const char* minimum = panel + kPanelRows * (starts.minimum + g * kPlanes.minimum);
    if constexpr (kHalfScales) {
      const auto* bytes = reinterpret_cast<const int8_t*>(scale) + unit * kElements;
      found.scales[0] = mul(supers[0], load_bytes_as_floats(bytes));
      found.scales[1] = mul(supers[0], load_bytes_as_floats(bytes + kPanelRows));
    } else if constexpr (kSupers) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(scale) + unit * kElements;
      found.scales[0] = mul(supers[0], load_bytes_as_floats(bytes));
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

  static Floats accumulate(const Left& w, const TokenGroup& x, Floats acc) {
    const Floats scale = splat(x.scale);
    if constexpr (kHalfScales) {
      const Ints first = dots<0, kQuads / 2>(w.codes, x, splat(x.minus_32[0]));
      const Ints second = dots<kQuads / 2, kQuads>(w.codes, x, splat(x.minus_32[1]));
      const Floats both = fma(to_float(first), w.scales[0], mul(to_float(second), w.scales[1]));
      return fma(both, scale, acc);
    } else {
      const Ints sum = dots<0, kQuads>(w.codes, x, start(x));
      acc = fma(to_float(sum), mul(w.scales[0], scale), acc);
      if constexpr (kMinima) acc = fma(w.minimum, splat(x.sum), acc);
      return acc;
    }
  }

 private:
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

  template <int kBegin, int kEnd>
  static Ints dots(const Bytes (&codes)[kQuads], const TokenGroup& x, Ints sum) {
#pragma GCC unroll 8
    for (int q = kBegin; q < kEnd; ++q) sum = dot<kBytes>(sum, codes[q], x.codes + 4 * q);
    return sum;
  }

  static void load_codes(const char* low, [[maybe_unused]] const char* high,
                         Bytes (&codes)[kQuads]) {
    constexpr int64_t kStride = kPanelRows * 4;  // from four columns to the next
    if constexpr (kBytes) {
#pragma GCC unroll 8
      for (int q = 0; q < kQuads; ++q) codes[q] = load_bytes(low + q * kStride);
      return;
    }
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      const Bytes both = load_bytes(low + q * kStride);
      codes[q] = low_nibbles(both);
      codes[q + 4] = high_nibbles(both);
    }
    if constexpr (kPlanes.high == 4) {
      const Bytes bits = load_bytes(high);
      codes[0] = join<4, 0x10>(codes[0], bits), codes[1] = join<3, 0x10>(codes[1], bits);
      codes[2] = join<2, 0x10>(codes[2], bits), codes[3] = join<1, 0x10>(codes[3], bits);
      codes[4] = join<0, 0x10>(codes[4], bits), codes[5] = join<-1, 0x10>(codes[5], bits);
      codes[6] = join<-2, 0x10>(codes[6], bits), codes[7] = join<-3, 0x10>(codes[7], bits);
    } else if constexpr (kPlanes.high == 8) {
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
        const Bytes bits = load_bytes(high + pair * kStride);
        const int q = 2 * pair;
        codes[q] = join<4, 0x30>(codes[q], bits), codes[q + 1] = join<2, 0x30>(codes[q + 1], bits);
        codes[q + 4] = join<0, 0x30>(codes[q + 4], bits);
        codes[q + 5] = join<-2, 0x30>(codes[q + 5], bits);
      }
    }
  }
};

// A unit of a panel by T tokens; `out` has T rows of kElements.
template <class Dot, int T, Fetch kFetch>
static inline void panel_tile(const Dot& dot, const char* panel, int unit, const char* tokens,
                              int64_t token_stride, Stream& stream, float (*out)[kElements]) {
  Floats acc[T];
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) acc[t] = zero();
  if constexpr (kFetch == Fetch::kParts) fetch<kFetch>(stream, stream.part);
  Stream ahead = stream;  // a copy: it stays in a register
  const int64_t groups = dot.cols / kGroup;
  Floats supers[2];
  for (int64_t g = 0; g < groups; g += Dot::kSuperGroups) {
    dot.load_supers(panel, unit, g / Dot::kSuperGroups, supers);
    if constexpr (Dot::kSupers && kFetch == Fetch::kAhead) fetch<kFetch>(ahead, Dot::kSuperBytes);
    for (int64_t i = g; i < g + Dot::kSuperGroups; ++i) {
      if constexpr (kFetch == Fetch::kAhead) fetch<kFetch>(ahead, Dot::kGroupBytes);
      const auto left = dot.left(panel, unit, i, supers);
      const auto* x = reinterpret_cast<const TokenGroup*>(tokens) + i;
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const auto* token = reinterpret_cast<const char*>(x) + t * token_stride;
        acc[t] = Dot::accumulate(left, *reinterpret_cast<const TokenGroup*>(token), acc[t]);
      }
    }
  }
  stream = ahead;
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) store(out[t], acc[t]);
}

// Rows begin .. end - 1 of the unit that begins at row `first`.
template <int T>
static inline void put_rows(const float (&from)[T][kElements], int64_t first, int64_t begin,
                            int64_t end, Output out) {
  const int64_t low = std::max(first, begin), high = std::min(first + kElements, end);
  for (int t = 0; t < T; ++t) {
    float* y = out.y + t * out.stride + (low - begin);
    if (high - low == kElements) {
      store(y, load(from[t]));
    } else {
      std::copy(from[t] + (low - first), from[t] + (high - first), y);
    }
  }
}

// The panels first .. last - 1, of which rows begin .. end - 1 are wanted, by T tokens.
template <class Dot, int T, Fetch kFetch>
static inline void panel_tiles(const Dot& dot, int64_t first, int64_t last, int64_t begin,
                               int64_t end, const char* tokens, Stream& stream, Output out) {
  for (int64_t p = first; p < last; ++p) {
    for (int unit = 0; unit < kUnits; ++unit) {
      const int64_t row = p * kPanelRows + unit * kElements;
      if (row >= end || row + kElements <= begin) continue;
      // Anew for each panel: a group's bytes are not whole lines. Further units find it near.
      if constexpr (kFetch == Fetch::kAhead)
        stream.next = dot.panel(p) + (unit == 0 ? far_ahead() : 0);
      alignas(64) float y[T][kElements];
      panel_tile<Dot, T, kFetch>(dot, dot.panel(p), unit, tokens, panel_token_bytes(dot.cols),
                                 stream, y);
      put_rows<T>(y, row, begin, end, out);
    }
  }
}

// The same by up to T tokens, in one pass over the weights.
template <class Dot, int T>
static inline void panel_few(const Dot& dot, int64_t first, int64_t last, int64_t begin,
                             int64_t end, const char* tokens, int64_t width, Stream& stream,
                             Output out) {
  if constexpr (T > 1) {
    if (width < T) {
      panel_few<Dot, T - 1>(dot, first, last, begin, end, tokens, width, stream, out);
      return;
    }
  }
  panel_tiles<Dot, T, Fetch::kAhead>(dot, first, last, begin, end, tokens, stream, out);
}

constexpr int kPanelTokens = kRegisters == 32 ? 8 : 4;  // of a tile
constexpr int64_t kBlockPanels = 2;  // that meet a tile's tokens while these are near

template <class Dot>
static void multiply_panels(const Dot& dot, int64_t begin, int64_t end, const void* packed,
                            int64_t width, Output out) {
  constexpr int T = kPanelTokens;
  const char* tokens = static_cast<const char*>(packed);
  const int64_t first = begin / kPanelRows, last = (end + kPanelRows - 1) / kPanelRows;
  Stream stream{nullptr, 0};
  if (width <= T) {
    return panel_few<Dot, T>(dot, first, last, begin, end, tokens, width, stream, out);
  }
  const int64_t block_bytes = kBlockPanels * dot.panel_bytes();
  const int64_t tiles = (width + T - 1) / T * kBlockPanels * kUnits;
  stream.part = (block_bytes / tiles + 63) / 64 * 64;
  for (int64_t p = first; p < last; p += kBlockPanels) {
    const int64_t block_end = std::min(last, p + kBlockPanels);
    stream.next = dot.panel(p) + block_bytes;
    int64_t t = 0;
    for (; t + T <= width; t += T) {
      panel_tiles<Dot, T, Fetch::kParts>(dot, p, block_end, begin, end,
                                         tokens + t * panel_token_bytes(dot.cols), stream,
                                         {out.y + t * out.stride, out.stride});
    }
    if (t < width) {
      panel_few<Dot, T - 1>(dot, p, block_end, begin, end, tokens + t * panel_token_bytes(dot.cols),
                            width - t, stream, {out.y + t * out.stride, out.stride});
    }
  }
}

}  // namespace monolane::MONOLANE_ISA
