// Products of panels with many tokens by tiles (tiles.h): the same bits as panel_dot.h's.
//
// Four columns of 16 rows lie side by side in a panel, which is how a tile takes its right side; a
// token's codes of a group lie side by side in memory, which is a row of the left side. So one dot
// of tiles sums a group of 32 columns, of 16 columns where these have a scale of their own, for 16
// rows and up to 16 tokens. The sums go through memory into vectors, are scaled there and added in
// float, group after group, by the very functions that AVX-512 uses. Sums of integers are exact,
// hence the bits are the same whether a token comes alone or in a wide pass. Where a group is fine
// for some of the tokens (panels.h), a second dot sums what it leaves over, zeros for the others.
//
// Codes are brought out of memory as signed numbers, so nothing has to be taken off a sum: one
// operation for 64 codes and all tokens, instead of one for 16 sums of a token.
//
// Columns are taken in blocks of 8 groups: 64 tokens of a block are 32 KB, which stay in the
// first-level cache beside the codes of a panel, while the panels of a band go by.
#pragma once

#include <cstddef>

#include "kernels/isa/tiles.h"
#include "kernels/products/panel_blocks.h"

namespace monolane::MONOLANE_ISA {

constexpr int64_t kTileTokens = 9;  // from which on tiles are used: docs/cpu.md, Tiles
constexpr int64_t kTileGroups = 8;  // of a block of columns
static_assert(kTileGroups * kGroup == kSuper);

// Of T tokens, those whose group is fine, a bit each: of each group of a block of columns.
using FineTokens = uint32_t[kTileGroups];

template <int T>
static inline void find_fine(const char* tokens, int64_t stride, int64_t groups, FineTokens& fine) {
  for (int64_t g = 0; g < groups; ++g, tokens += sizeof(TokenGroup)) {
    fine[g] = 0;
    for (int t = 0; t < T; ++t) {
      const auto& group = *reinterpret_cast<const TokenGroup*>(tokens + t * stride);
      fine[g] |= (group.rest != 0 ? 1u : 0u) << t;
    }
  }
}

// A block of columns of a panel, as signed numbers.
template <class Dot>
using TileBlock = Brought<typename Dot::Scales, kTileGroups, 0>;

// Sums over a block of columns, T tokens by a panel.
template <class Dot, int T>
class TileSums {
  static constexpr int kParts = Dot::kParts;
  static constexpr int kPartBytes = kGroup / kParts;  // of a token
  static constexpr int kPartQuads = kQuads / kParts;
  static_assert(kTileRowBytes == kPanelRows * 4);
  // Tiles of a group: sums, tokens, codes. The next group has others, so that none waits.
  static constexpr int kSum = 0, kToken = 2, kCode = 4;

 public:
  TileSums()
      : tiles_({{T, kTileRowBytes},
                {T, kTileRowBytes},
                {T, kPartBytes},
                {T, kPartBytes},
                {kPartQuads, kTileRowBytes},
                {kPartQuads, kTileRowBytes},
                {1, 4},  // not used
                {1, 4}}) {}

  // Adds `groups` groups to `sums`, of a token [kPanelRows]; token t at tokens + t * stride.
  void add(const TileBlock<Dot>& block, int64_t groups, const char* tokens, int64_t stride,
           const FineTokens& fine, bool first, float (*sums)[T][kElements]) {
    Floats acc[kUnits][T];
    each<kUnits>([&](auto u) MONOLANE_INLINE {
      each<T>([&](auto t) MONOLANE_INLINE { acc[u][t] = first ? zero() : load(sums[u][t]); });
    });
    // One group ahead: the units work while vectors scale.
    multiply<0>(block, 0, tokens, stride, fine);
    for (int64_t g = 0; g < groups; g += 2) {
      if (g + 1 < groups) multiply<1>(block, g + 1, at(tokens, g + 1), stride, fine);
      scale<0>(block, g, at(tokens, g), stride, acc);
      if (g + 1 == groups) break;
      if (g + 2 < groups) multiply<0>(block, g + 2, at(tokens, g + 2), stride, fine);
      scale<1>(block, g + 1, at(tokens, g + 1), stride, acc);
    }
    each<kUnits>([&](auto u) MONOLANE_INLINE {
      each<T>([&](auto t) MONOLANE_INLINE { store(sums[u][t], acc[u][t]); });
    });
  }

 private:
  static const char* at(const char* tokens, int64_t g) {
    return tokens + g * static_cast<int64_t>(sizeof(TokenGroup));
  }

  template <int kOdd>
  MONOLANE_INLINE void multiply(const TileBlock<Dot>& block, int64_t g, const char* tokens,
                                int64_t stride, const FineTokens& fine) {
    static_assert(offsetof(TokenGroup, codes) == 0);
    sum_parts<kOdd>(block, g, tokens, stride, integers_[kOdd]);
    if (fine[g] != 0) [[unlikely]]
      add_rests<kOdd>(block, g, tokens, stride, fine[g]);
  }

  template <int kOdd>
  MONOLANE_INLINE void sum_parts(const TileBlock<Dot>& block, int64_t g, const void* tokens,
                                 int64_t stride, int32_t (&sums)[kParts][T][kPanelRows]) {
    each<kParts>([&](auto part) MONOLANE_INLINE {
      constexpr int kOther = kParts == 2 ? int{part} : kOdd;
      tiles_.template zero<kSum + kOther>();
      tiles_.template load<kToken + kOther>(static_cast<const char*>(tokens) + part * kPartBytes,
                                            stride);
      tiles_.template load<kCode + kOther>(block.codes[g][part * kPartQuads], kTileRowBytes);
      tiles_.template dot<kSum + kOther, kToken + kOther, kCode + kOther>();
      tiles_.template store<kSum + kOther>(sums[part], kTileRowBytes);
    });
  }

  template <int kOdd>
  void add_rests(const TileBlock<Dot>& block, int64_t g, const char* tokens, int64_t stride,
                 uint32_t fine) {
    alignas(64) int8_t codes[T][kGroup];
    alignas(64) int32_t sums[kParts][T][kPanelRows];
    for (int t = 0; t < T; ++t) {
      if ((fine >> t & 1) == 0) {
        std::memset(codes[t], 0, kGroup);
        continue;
      }
      const auto& group = *reinterpret_cast<const TokenGroup*>(tokens + t * stride);
      std::memcpy(codes[t], group.left_over().codes, kGroup);
    }
    sum_parts<kOdd>(block, g, codes, kGroup, sums);
    for (; fine != 0; fine &= fine - 1) {
      const int t = std::countr_zero(fine);
      for (int part = 0; part < kParts; ++part) {
        int32_t* sum = integers_[kOdd][part][t];
        for (int r = 0; r < kPanelRows; ++r) sum[r] = kFineSteps * sum[r] + sums[part][t][r];
      }
    }
  }

  template <int kOdd>
  MONOLANE_INLINE void scale(const TileBlock<Dot>& block, int64_t g, const char* tokens,
                             int64_t stride, Floats (&acc)[kUnits][T]) {
    each<kUnits>([&](auto u) MONOLANE_INLINE {
      const typename Dot::Scales w = block.scales[g][u];
      each<T>([&](auto t) MONOLANE_INLINE {
        const auto& x = *reinterpret_cast<const TokenGroup*>(tokens + t * stride);
        Ints sums[kParts];
        for (int p = 0; p < kParts; ++p) {
          std::memcpy(&sums[p], integers_[kOdd][p][t] + u * kElements, sizeof sums[p]);
        }
        acc[u][t] = add_parts(w, x, sums, acc[u][t]);
      });
    });
  }

  alignas(64) int32_t integers_[2][kParts][T][kPanelRows];
  Tiles tiles_;
};

// `width` tokens, T at a time. The last T may have some of those before them once more, which get
// the same sums again: so every tile has one shape. `Adder`: how sums of a block are made.
template <class Dot, int T, template <class, int> class Adder = TileSums>
static void multiply_tiles(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                           int64_t width, Output out) {
  constexpr int64_t kMost = kMaxWidth / T;
  const int64_t stride = panel_token_bytes(dot.cols());
  const int64_t count = (width + T - 1) / T;
  const auto token = [&](int64_t i) { return std::min(i * T, width - T); };
  Stream stream{nullptr, 0};
  Adder<Dot, T> adder;
  TileBlock<Dot> brought;
  alignas(64) float sums[kBandPanels][kMost][kUnits][T][kElements];
  FineTokens fine[kMost];
  const Rows rows{begin, end};
  for_blocks(dot, rows, [&](const Block& block) {
    // The next block in equal parts, one before each tile.
    const int64_t panels = block.last - block.first;
    const int64_t bytes = panels * groups_bytes(Dot::kOf, block.end - block.begin);
    const int64_t steps = (block.end - block.begin + kTileGroups - 1) / kTileGroups;
    stream.next = dot.at(block.first, block.begin) + bytes;
    stream.part = (bytes / (steps * panels * count) + 63) / 64 * 64;
    for (int64_t g = block.begin; g < block.end; g += kTileGroups) {
      const int64_t some = std::min(kTileGroups, block.end - g);
      const auto begin_of = [&](int64_t t) {
        return tokens + token(t) * stride + g * static_cast<int64_t>(sizeof(TokenGroup));
      };
      for (int64_t t = 0; t < count; ++t) find_fine<T>(begin_of(t), stride, some, fine[t]);
      for (int64_t p = block.first; p < block.last; ++p) {
        brought.bring(dot, dot.at(p, g), some);
        for (int64_t t = 0; t < count; ++t) {
          fetch<Fetch::kParts>(stream, stream.part);
          adder.add(brought, some, begin_of(t), stride, fine[t], g == 0, sums[p - block.first][t]);
        }
      }
    }
    if (block.end < dot.groups) return;
    for (int64_t p = block.first; p < block.last; ++p) {
      for (int64_t t = 0; t < count; ++t) {
        for (int u = 0; u < kUnits; ++u) {
          put_rows<T>(sums[p - block.first][t][u], p * kPanelRows + u * kElements, rows,
                      {out.y + token(t) * out.stride, out.stride});
        }
      }
    }
  });
}

}  // namespace monolane::MONOLANE_ISA
