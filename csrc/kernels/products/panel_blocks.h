// The panels of a matrix, block after block as they are stored (panels.h), by a call's tokens:
// which rows and how many tokens at a time, and how memory is read ahead. What a group gives is in
// panel_dot.h.
#pragma once

#include "kernels/products/brought.h"

namespace monolane::MONOLANE_ISA {

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

// A block by T tokens. Not inline: few and many tokens share it, and it compiles in half the time.
template <class Dot, int T, Fetch kFetch>
[[gnu::noinline]] static void panel_tiles(const Dot& dot, const Block& block, const char* tokens,
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

#ifdef MONOLANE_BRINGS
// The same by whole tiles of T tokens: each panel is brought out of memory once for all of them.
template <class Dot, int T>
static inline void panel_brought(const Dot& dot, const Block& block, const char* tokens,
                                 int64_t width, Stream& stream, const Target& target) {
  using Scales = typename Dot::Scales;
  alignas(64) static constexpr float kZeros[T * kElements] = {};
  const int64_t stride = panel_token_bytes(dot.cols()), groups = block.end - block.begin;
  const bool last = block.end == dot.groups;
  tokens += block.begin * static_cast<int64_t>(sizeof(TokenGroup));
  HalfSums halves;
  if constexpr (Scales::kMinima == 2) find_half_sums(tokens, stride, width, groups, halves);
  BroughtBlock<Scales> brought;
  for (int64_t p = block.first; p < block.last; ++p) {
    brought.bring(dot, dot.at(p, block.begin), groups);
    for (int64_t t = 0; t < width; t += T) {
      fetch<Fetch::kParts>(stream, stream.part);
      const Target to = target.from_token(t);
      float* aside = to.aside + (p - block.first) * to.stride;
      alignas(64) float y[T][kElements];
      add_brought<Scales, T>(brought, groups, tokens + t * stride, stride, halves + t,
                             block.begin == 0 ? kZeros : aside, last ? y[0] : aside);
      if (last) put_rows<T>(y, p * kPanelRows, to.rows, to.out);
    }
  }
}
#endif

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
#ifdef MONOLANE_BRINGS
      if constexpr (kCostly<Dot>) {
        if (width >= kBroughtTokens) {
          t = width / T * T;
          panel_brought<Dot, T>(dot, block, tokens, t, stream, target);
        }
      }
#endif
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
