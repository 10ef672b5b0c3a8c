// A block of columns of a panel, brought out of memory once for many tokens: a byte for each code,
// and scales in float.
#pragma once

#include "kernels/products/panel_dot.h"

namespace monolane::MONOLANE_ISA {

// kTooMuch: what the bytes have more than the numbers that they mean.
template <class Scales, int64_t kGroups, int kTooMuch>
struct Brought {
  alignas(64) int8_t codes[kGroups][kQuads][kPanelRows * 4];
  Scales scales[kGroups][kUnits];

  template <class Dot>
  void bring(const Dot& dot, const char* from, int64_t groups) {
    Floats supers[kUnits][2];
    for (int64_t g = 0; g < groups;) {
      if constexpr (Dot::kSupers) {
        each<kUnits>([&](auto u) MONOLANE_INLINE { dot.load_supers(from, u, supers[u]); });
        from += Dot::kSuperBytes;
      }
      const int64_t end = Dot::kSupers ? g + Dot::kSuperGroups : groups;
      while (g < end) {
        const int64_t count = std::min(Dot::kRecord, end - g);
        for (int64_t i = 0; i < count; ++i, ++g) {
          each<kUnits>([&](auto u) MONOLANE_INLINE {
            scales[g][u] =
                dot.template bring_group<kTooMuch>(from, count, u, i, supers[u], codes[g]);
          });
        }
        from += count * Dot::kGroupBytes;
      }
    }
  }
};

#ifdef MONOLANE_BRINGS
// From which on: to bring a panel is not hidden behind dots as to unpack it for each tile is.
constexpr int64_t kBroughtTokens = 32;

// Codes of 2 and 3 bits, which take most to unpack. Of others the gain is within what runs differ.
template <class Dot>
constexpr bool kCostly = Dot::kPlanes.low == 8;

// What bytes have too much, for numbers of all formats of a shape to be unsigned.
template <class Scales>
constexpr int kBroughtBias = Scales::kMinima > 0 ? 0 : 64;

template <class Scales>
using BroughtBlock = Brought<Scales, kBlockGroups, kBroughtBias<Scales>>;

// Of each token and group of a block, what minima of 16 columns are multiplied with.
using HalfSums = float[kMaxWidth][kBlockGroups][2];

static inline void find_half_sums(const char* tokens, int64_t stride, int64_t width, int64_t groups,
                                  HalfSums& found) {
  for (int64_t t = 0; t < width; ++t, tokens += stride) {
    const auto* x = reinterpret_cast<const TokenGroup*>(tokens);
    for (int64_t g = 0; g < groups; ++g) {
      for (int half = 0; half < 2; ++half) found[t][g][half] = x[g].half_sum(half);
    }
  }
}

// A group of a token with its half sums.
struct HalvedGroup {
  float scale;
  const float* halves;
  MONOLANE_INLINE float half_sum(int half) const { return halves[half]; }
};

// A block by T tokens, of which token t's begins at tokens + t * stride; sums as in panel_tile.
// Not inline: formats of a shape share it.
template <class Scales, int T>
[[gnu::noinline]] static void add_brought(const BroughtBlock<Scales>& block, int64_t groups,
                                          const char* tokens, int64_t stride,
                                          [[maybe_unused]] const float (*halves)[kBlockGroups][2],
                                          const float* before, float* after) {
  static_assert(kUnits == 1);
  Floats acc[T];
  each<T>([&](auto t) MONOLANE_INLINE { acc[t] = load(before + t * kElements); });
  for (int64_t g = 0; g < groups; ++g, tokens += sizeof(TokenGroup)) {
    const Scales w = block.scales[g][0];
    Bytes codes[kQuads];
    each<kQuads>([&](auto quad)
                     MONOLANE_INLINE { codes[quad] = load_bytes(block.codes[g][quad]); });
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const auto& x = *reinterpret_cast<const TokenGroup*>(tokens + t * stride);
      Ints sums[Scales::kParts];
      GroupSums<Scales::kParts, kBroughtBias<Scales>, true>::find(codes, x, sums);
      if constexpr (Scales::kMinima == 2) {
        acc[t] = add_parts(w, HalvedGroup{x.scale, halves[t][g]}, sums, acc[t]);
      } else {
        acc[t] = add_parts(w, x, sums, acc[t]);
      }
    }
  }
  each<T>([&](auto t) MONOLANE_INLINE { store(after + t * kElements, acc[t]); });
}
#endif

}  // namespace monolane::MONOLANE_ISA
