// Sums of panels with pairs of tokens by products of matrices, two rows by two tokens and eight
// columns at a time (SMMLA of FEAT_I8MM): the same bits as panel_dot.h's, which are sums of
// integers and then the same floats in the same order.
//
// tile_dot.h brings a block of columns of a panel out of memory, once for all tokens; this is what
// meets it in place of tiles. A vector has four columns of four rows there, so two vectors make
// eight columns of two rows twice. Sums stay as the instruction leaves them, two rows by two
// tokens, in float too: scales are brought into that order once for all tokens.
#pragma once

#include "kernels/products/tile_dot.h"

namespace monolane::MONOLANE_ISA {

// From which on, and how many together. By count, not by the clock (docs/cpu.md, Arm): with fewer
// it costs more to bring codes into this order than matrices spare.
constexpr int kMatrixTokens = 8;

template <class Dot, int T>
class MatrixSums {
  static constexpr int kPairs = T / 2;  // of tokens
  static constexpr int kEights = kGroup / 8;
  static constexpr int kHalves = 2;  // of a unit: rows 0 and 1, 2 and 3
  static_assert(T % 2 == 0 && kElements == 4);

 public:
  // Adds `groups` groups to `sums`, of a token [kPanelRows]; token t at tokens + t * stride.
  void add(const TileBlock<Dot>& block, int64_t groups, const char* tokens, int64_t stride,
           const FineTokens& fine, bool first, float (*sums)[T][kElements]) {
    for (int64_t g = 0; g < groups; ++g, tokens += sizeof(TokenGroup)) {
      for (int p = 0; p < kPairs; ++p) {
        const char* x = tokens + 2 * p * stride;
        const auto& a = *reinterpret_cast<const TokenGroup*>(x);
        const auto& b = *reinterpret_cast<const TokenGroup*>(x + stride);
        pairs_[g][p].join(a, b);
        if ((fine[g] >> 2 * p & 3) != 0) rests_[g][p].join(a, b);
      }
    }
    fine_ = &fine;
    for (int u = 0; u < kUnits; ++u) add_unit(block, groups, u, first, sums[u]);
  }

 private:
  // A group of two tokens; numbers that a token has one of are those of both, twice.
  struct Pair {
    Bytes codes[kEights];
    Floats scale, sum, halves[2];

    void join(const TokenGroup& a, const TokenGroup& b) {
      join_codes(a.codes, b.codes, codes);
      scale = interleave<false>(splat(a.scale), splat(b.scale));
      sum = interleave<false>(splat(a.sum), splat(b.sum));
      if constexpr (Dot::kHalfMinima) {
        for (int i = 0; i < 2; ++i) {
          halves[i] = interleave<false>(splat(a.half_sum(i)), splat(b.half_sum(i)));
        }
      }
    }
    Floats half_sum(int half) const { return halves[half]; }
  };

  // What a group leaves over, zeros for a token for which it is not fine.
  struct Rest {
    Bytes codes[kEights];
    Ints times;  // of each token's sum: kFineSteps where the group is fine, else 1

    void join(const TokenGroup& a, const TokenGroup& b) {
      alignas(16) static constexpr int8_t kZeros[kGroup] = {};
      const auto codes_of = [](const TokenGroup& x) {
        return x.rest == 0 ? kZeros : x.left_over().codes;
      };
      join_codes(codes_of(a), codes_of(b), codes);
      const int32_t first = a.rest == 0 ? 1 : kFineSteps, second = b.rest == 0 ? 1 : kFineSteps;
      const int32_t both[kElements] = {first, second, first, second};
      std::memcpy(&times, both, sizeof times);
    }
  };

  static void join_codes(const int8_t* a, const int8_t* b, Bytes (&codes)[kEights]) {
    each<2>([&](auto half) MONOLANE_INLINE {
      const Bytes x = load_bytes(a + 16 * half), y = load_bytes(b + 16 * half);
      codes[2 * half] = join_tokens<false>(x, y);
      codes[2 * half + 1] = join_tokens<true>(x, y);
    });
  }

  // What a unit brings to a group, for two of its rows.
  template <bool kLast>
  static typename Dot::Scales scales_of(const typename Dot::Scales& w) {
    typename Dot::Scales found;
    each<Dot::kParts>([&](auto i) MONOLANE_INLINE {
      found.scales[i] = interleave<kLast>(w.scales[i], w.scales[i]);
    });
    if constexpr (Dot::kMinima) {
      each<Dot::kMinimumParts>([&](auto i) MONOLANE_INLINE {
        found.minima[i] = interleave<kLast>(w.minima[i], w.minima[i]);
      });
    }
    return found;
  }

  MONOLANE_INLINE void add_unit(const TileBlock<Dot>& block, int64_t groups, int unit, bool first,
                                float (&sums)[T][kElements]) {
    Floats acc[kPairs][kHalves];
    each<kPairs>([&](auto p) MONOLANE_INLINE {
      const Floats a = first ? zero() : load(sums[2 * p]);
      const Floats b = first ? zero() : load(sums[2 * p + 1]);
      acc[p][0] = interleave<false>(a, b);
      acc[p][1] = interleave<true>(a, b);
    });
    for (int64_t g = 0; g < groups; ++g) {
      const typename Dot::Scales& w = block.scales[g][unit];
      const typename Dot::Scales scales[kHalves] = {scales_of<false>(w), scales_of<true>(w)};
      Bytes rows[kHalves][kEights];
      each<kEights>([&](auto i) MONOLANE_INLINE {
        const Bytes four = load_bytes(block.codes[g][2 * i] + unit * sizeof(Bytes));
        const Bytes next = load_bytes(block.codes[g][2 * i + 1] + unit * sizeof(Bytes));
        rows[0][i] = join_columns<false>(four, next);
        rows[1][i] = join_columns<true>(four, next);
      });
      each<kPairs>([&](auto p) MONOLANE_INLINE {
        const Pair& x = pairs_[g][p];
        const bool fine = ((*fine_)[g] >> 2 * p & 3) != 0;
        each<kHalves>([&](auto half) MONOLANE_INLINE {
          Ints sums[Dot::kParts];
          sum_group(rows[half], x.codes, sums);
          if (fine) [[unlikely]] {
            const Rest& left = rests_[g][p];
            Ints rest[Dot::kParts];
            sum_group(rows[half], left.codes, rest);
            each<Dot::kParts>([&](auto part) MONOLANE_INLINE {
              sums[part] = multiply_add(rest[part], sums[part], left.times);
            });
          }
          acc[p][half] = add_parts(scales[half], x, sums, acc[p][half]);
        });
      });
    }
    each<kPairs>([&](auto p) MONOLANE_INLINE {
      store(sums[2 * p], every_other<false>(acc[p][0], acc[p][1]));
      store(sums[2 * p + 1], every_other<true>(acc[p][0], acc[p][1]));
    });
  }

  MONOLANE_INLINE static void sum_group(const Bytes (&rows)[kEights], const Bytes (&codes)[kEights],
                                        Ints (&sums)[Dot::kParts]) {
    each<Dot::kParts>([&](auto part) MONOLANE_INLINE {
      sums[part] = splat(int32_t{0});
      each<kEights / Dot::kParts>([&](auto i) MONOLANE_INLINE {
        constexpr int at = part * (kEights / Dot::kParts) + i;
        sums[part] = multiply_matrices(sums[part], rows[at], codes[at]);
      });
    });
  }

  Pair pairs_[kTileGroups][kPairs];
  Rest rests_[kTileGroups][kPairs];  // of pairs with a token for which the group is fine
  const FineTokens* fine_ = nullptr;
};

}  // namespace monolane::MONOLANE_ISA
