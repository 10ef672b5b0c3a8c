// Attention over keys and values in codes, by dots of 16-bit integers: a code is exact in 16 bits,
// queries and weights are rounded to 16 bits, once for each call. As floats, 32 codes take two
// multiplications for each query head whatever their size, and then arithmetic is the limit where
// heads share keys; one `vpdpwssd` does the same 32. Integer sums are exact, so their order is
// free.
//
// A query is q = unit * word, |word| <= 32767, with one unit for a head: it errs by at most unit /
// 2, 2^-16 of the head's largest number, where the keys' own codes err by 2^-8 of their group's.
// Weights of values likewise, e_j times the scale of value j, with one unit for each head, group of
// columns and call: a row is not multiplied with its scale, its weight is.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/isa/vector.h"
#include "kernels/kernels.h"

#ifdef __AVX512F__

namespace monolane::MONOLANE_ISA {

using Words = __m512i;  // 32 of 16 bits
constexpr int kWords = 32;
constexpr float kLargestWord = 32767.0f;

// Up to four groups of a key, `quad`, lie in one vector, 16 bytes of each in a lane of 128 bits:
// all that meets in a lane has one scale.
constexpr int kQuad = 4;
constexpr int kMaxQuads = kMaxHeadDim / kGroup / kQuad;
constexpr int kQuadSteps = 4;  // vectors of words of a quad: even and odd columns of either half

// max |x| of bits, which order like the floats but for NaN, the largest: it is not lost.
static inline Ints larger(Ints most, Floats x) {
  const Ints size = _mm512_and_si512(_mm512_castps_si512(x), splat(0x7FFFFFFF));
  return _mm512_max_epi32(most, size);
}

// How numbers of at most `top` become words: word = round(x * factor), x = about word * unit. Below
// 2^-100 all count as zero, since 32767 / top must stay finite; of NaN and infinities the unit is
// NaN.
struct Scale16 {
  float factor, unit;
  explicit Scale16(Ints most) {
    const float top = bits_float(static_cast<uint32_t>(_mm512_reduce_max_epi32(most)));
    const bool finite = top < std::numeric_limits<float>::infinity();
    factor = finite && top >= 0x1p-100f ? kLargestWord / top : 0.0f;
    unit = finite ? top / kLargestWord : std::numeric_limits<float>::quiet_NaN();
  }
};

// Two vectors of floats as 32 words, in order.
static inline Words to_words(Floats a, Floats b, Floats factor) {
  const Ints x = _mm512_cvtps_epi32(mul(a, factor)), y = _mm512_cvtps_epi32(mul(b, factor));
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm512_permutexvar_epi64(order, _mm512_packs_epi32(x, y));
}

static inline Ints dot_words(Ints acc, Words a, Words b) { return _mm512_dpwssd_epi32(acc, a, b); }

static inline __m128i load_16(const char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline __m256i load_32(const char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// The two bytes that each of four blocks begins with. Joined here, since to store each by itself
// takes longer than all else that is done with them.
static inline uint64_t first_halves(const char* a, const char* b, const char* c, const char* d) {
  const auto two = [](const char* low, const char* high) {
    uint16_t x;
    uint32_t y;  // two more bytes, of the same block: shifted out
    std::memcpy(&x, low, sizeof x);
    std::memcpy(&y, high, sizeof y);
    return x | y << 16;
  };
  uint64_t four = two(a, b) | uint64_t{two(c, d)} << 32;
  asm(""
      : "+r"(four));  // or gcc puts them together by shuffles, which are what attention waits for
  return four;
}

// Prefetches what lies behind a pointer at the pace of the work beside it.
struct Pace {
  const char *at, *due;
  explicit Pace(const void* p) : at(static_cast<const char*>(p)), due(at) {}
  void go(int64_t bytes) {
    if (at == nullptr) return;
    for (due += bytes; at < due; at += 64) prefetch_far(at);
  }
};

// Rows of kQ80 or kQ40; the columns of a head are whole groups.
template <Format kFormat>
struct WordRows {
  static constexpr bool kInWords = true;
  static constexpr bool kNibbles = kFormat == Format::kQ40;
  static constexpr int64_t kBlock = row_bytes(kFormat, kGroup);
  static constexpr int64_t bytes(int64_t columns) { return row_bytes(kFormat, columns); }

  // Two groups of bytes fill a vector as they lie: lanes are their halves.
  template <int N>
  static constexpr bool kPair = N == 2 && !kNibbles;
  template <int N>
  static constexpr int kLoads = kNibbles || kPair<N> ? 1 : 2;  // vectors of codes of a quad
  static constexpr int kSteps = kNibbles ? 4 : 2;              // vectors of words of those codes

  // 16 bytes of codes of each of N groups; `half` of the 32 where they are bytes.
  template <int N>
  static Words load_codes(const char* row, int half) {
    const char* p = row + sizeof(uint16_t) + half * 16;
    if constexpr (kPair<N>) {
      return _mm512_inserti64x4(_mm512_castsi256_si512(load_32(p)), load_32(p + kBlock), 1);
    }
    Words x = _mm512_zextsi128_si512(load_16(p));
    if constexpr (N > 1) x = _mm512_inserti32x4(x, load_16(p + kBlock), 1);
    if constexpr (N > 2) x = _mm512_inserti32x4(x, load_16(p + 2 * kBlock), 2);
    if constexpr (N > 3) x = _mm512_inserti32x4(x, load_16(p + 3 * kBlock), 3);
    return x;
  }

  // Words of codes, in the order of steps: even columns, odd ones. Nibbles are not less 8 yet, and
  // those of the second half follow.
  static Words words(Words codes, int step) {
    if constexpr (kNibbles) {
      const Words nibble = _mm512_set1_epi16(15);
      if (step == 0) return _mm512_and_si512(codes, nibble);
      if (step == 1) return _mm512_and_si512(_mm512_srli_epi16(codes, 8), nibble);
      if (step == 2) return _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
      return _mm512_srli_epi16(codes, 12);
    } else {
      return _mm512_srai_epi16(step == 0 ? _mm512_slli_epi16(codes, 8) : codes, 8);
    }
  }

  // A query head in the order in which `words` brings columns out.
  struct Query {
    alignas(64) int16_t words[kMaxQuads][kQuadSteps][kWords];
    alignas(64) int32_t minus_8[kMaxQuads][kElements];  // times the sum of each element's words
    float unit;

    void pack(const float* q, int64_t head_dim) {
      Ints most = splat(0);
      for (int64_t c = 0; c < head_dim; c += kElements) most = larger(most, load(q + c));
      const Scale16 scale(most);
      const Floats factor = splat(scale.factor);
      unit = scale.unit;
      for (int64_t first = 0; first < head_dim; first += kQuad * kGroup) {
        Words groups[kQuad];
        for (int g = 0; g < kQuad; ++g) {
          const int64_t c = first + g * kGroup;
          groups[g] = c < head_dim ? to_words(load(q + c), load(q + c + kElements), factor)
                                   : _mm512_setzero_si512();
        }
        const int64_t quad = first / (kQuad * kGroup);
        const bool pair = !kNibbles && head_dim - first == 2 * kGroup;
        Ints sums = splat(0);
        for (int step = 0; step < (pair ? 2 : kQuadSteps); ++step) {
          const Words x = pair ? halves(groups[0], groups[1], step)
                               : quarters(groups, step / 2 * 16 + step % 2);
          _mm512_store_si512(words[quad][step], x);
          sums = dot_words(sums, x, _mm512_set1_epi16(-8));
        }
        _mm512_store_si512(minus_8[quad], sums);
      }
    }

   private:
    // Every other word from `odd` on, of both.
    static Words halves(Words a, Words b, int odd) {
      Words index = _mm512_set1_epi16(static_cast<int16_t>(odd));
      alignas(64) static constexpr int16_t kEven[kWords] = {
          0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
          32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
      index = _mm512_add_epi16(index, _mm512_load_si512(kEven));
      return _mm512_permutex2var_epi16(a, index, b);
    }
    // Every other word from `first` on, eight of each group.
    static Words quarters(const Words (&groups)[kQuad], int first) {
      const Words low = halves(groups[0], groups[1], first % 2);
      const Words high = halves(groups[2], groups[3], first % 2);
      return first < 16 ? _mm512_shuffle_i32x4(low, high, 0x88)
                        : _mm512_shuffle_i32x4(low, high, 0xDD);
    }
  };

  // Four rows, of which those behind `count` are the last once more.
  struct FourRows {
    const char* rows[4];
  };
  static FourRows four_rows(const char* p, int64_t row, int64_t count) {
    if (count >= 4) return {{p, p + row, p + 2 * row, p + 3 * row}};
    const int64_t last = (count - 1) * row;
    return {{p, p + std::min(row, last), p + last, p + last}};
  }

  // Scales of the quads of four keys, float16 [quads][lane][4]: read ahead, since a vector cannot
  // be loaded while its parts are still on their way to the cache.
  struct Scales {
    alignas(64) uint64_t of[kMaxQuads][kQuad] = {};

    template <int N>
    void gather_quad(const char* const (&rows)[4], int64_t quad) {
#pragma GCC unroll 8
      for (int g = 0; g < N; ++g) {
        const int64_t at = (quad * kQuad + g) * kBlock;
        const uint64_t four = first_halves(rows[0] + at, rows[1] + at, rows[2] + at, rows[3] + at);
        if constexpr (kPair<N>) {
          of[quad][2 * g] = of[quad][2 * g + 1] = four;
        } else {
          of[quad][g] = four;
        }
      }
    }
    template <int N>
    void gather(const char* const (&rows)[4], int64_t last) {
      for (int64_t quad = 0; quad < last; ++quad) gather_quad<kQuad>(rows, quad);
      gather_quad<N>(rows, last);
    }
    Floats quad(int64_t i) const { return load(reinterpret_cast<const F16*>(of[i])); }
  };

  // Sums of the four elements of each lane, of four vectors: [lane][vector].
  static Ints sum_lanes(Ints a, Ints b, Ints c, Ints d) {
    const Ints ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const Ints cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }

  // Adds N groups of four keys by H queries: out[h], [lane][key].
  template <int H, int N>
  static void score_quad(const char* const (&rows)[4], const Query* queries, int64_t quad,
                         Floats scales, Floats (&out)[H]) {
    Ints acc[4][H];
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
      for (int k = 0; k < 4; ++k) {
        acc[k][h] = kNibbles ? _mm512_load_si512(queries[h].minus_8[quad]) : splat(0);
      }
    }
    const int64_t at = quad * kQuad * kBlock;
#pragma GCC unroll 8
    for (int half = 0; half < kLoads<N>; ++half) {
      Words codes[4];
#pragma GCC unroll 8
      for (int k = 0; k < 4; ++k) codes[k] = load_codes<N>(rows[k] + at, half);
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step) {
        Words key[4];
#pragma GCC unroll 8
        for (int k = 0; k < 4; ++k) key[k] = words(codes[k], step);
#pragma GCC unroll 8
        for (int h = 0; h < H; ++h) {
          const Words query = _mm512_load_si512(queries[h].words[quad][half * kSteps + step]);
#pragma GCC unroll 8
          for (int k = 0; k < 4; ++k) acc[k][h] = dot_words(acc[k][h], key[k], query);
        }
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const Ints sums = sum_lanes(acc[0][h], acc[1][h], acc[2][h], acc[3][h]);
      out[h] = fma(to_float(sums), scales, out[h]);
    }
  }

  // scores[h * count + j], of H queries; N: groups of the last quad. `ahead`: what is prefetched
  // meanwhile, as many bytes as keys.
  template <int H, int N>
  static void score_keys(const Query* queries, const char* keys, int64_t row, int64_t count,
                         int64_t head_dim, Pace ahead, float* scores) {
    const int64_t last = (head_dim / kGroup - 1) / kQuad;
    Scales scales[2];
    const auto score_four = [&](const char* const(&rows)[4], const Scales& own, int64_t j,
                                int64_t keys) {
      ahead.go(4 * row);
      Floats out[H];
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) out[h] = zero();
      for (int64_t quad = 0; quad < last; ++quad) {
        score_quad<H, kQuad>(rows, queries, quad, own.quad(quad), out);
      }
      score_quad<H, N>(rows, queries, last, own.quad(last), out);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) {
        const __m256 half =
            _mm256_add_ps(_mm512_castps512_ps256(out[h]), _mm512_extractf32x8_ps(out[h], 1));
        const __m128 four =
            _mm_mul_ps(_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)),
                       _mm_set1_ps(queries[h].unit));
        _mm_mask_storeu_ps(scores + h * count + j, static_cast<__mmask8>((1 << keys) - 1), four);
      }
    };
    int64_t j = 0;
    if (count >= 4) {
      scales[0].template gather<N>(four_rows(keys, row, 4).rows, last);
    }
    for (; j + 8 <= count; j += 4) {
      const FourRows own = four_rows(keys + j * row, row, 4);
      const FourRows next = four_rows(keys + (j + 4) * row, row, 4);
      scales[(j / 4 + 1) % 2].template gather<N>(next.rows, last);
      score_four(own.rows, scales[j / 4 % 2], j, 4);
    }
    if (j + 4 <= count) {
      score_four(four_rows(keys + j * row, row, 4).rows, scales[j / 4 % 2], j, 4);
      j += 4;
    }
    if (j < count) {
      const FourRows own = four_rows(keys + j * row, row, count - j);
      scales[0].template gather<N>(own.rows, last);
      score_four(own.rows, scales[0], j, count - j);
    }
  }

  template <int H>
  static void score(const float* q, const char* keys, int64_t row, int64_t count, int64_t head_dim,
                    const char* ahead, float* scores) {
    Query queries[H];
    for (int h = 0; h < H; ++h) queries[h].pack(q + h * head_dim, head_dim);
    const auto run = [&]<int N>() {
      score_keys<H, N>(queries, keys, row, count, head_dim, Pace(ahead), scores);
    };
    switch (head_dim / kGroup % kQuad) {
      case 1:
        return run.template operator()<1>();
      case 2:
        return run.template operator()<2>();
      case 3:
        return run.template operator()<3>();
      default:
        return run.template operator()<4>();
    }
  }

  // Keys whose weighted codes are summed as integers: 2^8 * 2^15 * 2^7 < 2^31.
  static constexpr int64_t kKeys = 256;

  // Scales of values, float16 [groups][kKeys], all in one walk: what four walks brought into the
  // first-level cache would push each other out.
  struct ValueScales {
    alignas(64) uint64_t of[kMaxHeadDim / kGroup][kKeys / 4];

    void gather(const char* values, int64_t row, int64_t count, int64_t groups) {
      for (int64_t j = 0; j < count; j += 4, values += 4 * row) {
        const FourRows four = four_rows(values, row, count - j);
        for (int64_t at = 0, g = 0; g < groups; ++g, at += kBlock) {
          of[g][j / 4] = first_halves(four.rows[0] + at, four.rows[1] + at, four.rows[2] + at,
                                      four.rows[3] + at);
        }
      }
    }
  };

  // The weights of one group of values, e_j times the scale of value j, as words.
  template <int H>
  struct Weights {
    alignas(64) int16_t words[H][kKeys];
    float units[H];
    int32_t sums[H];

    void make(const float* e, int64_t stride, int64_t count, const uint64_t* scales) {
      alignas(64) float products[H][kKeys];
      Ints most[H];
      for (int h = 0; h < H; ++h) most[h] = splat(0);
      for (int64_t j = 0; j < count; j += kElements) {
        const Floats scale = load(reinterpret_cast<const F16*>(scales + j / 4));
        const auto mask =
            static_cast<__mmask16>(count - j >= kElements ? 0xFFFF : (1 << (count - j)) - 1);
        for (int h = 0; h < H; ++h) {
          const Floats x =
              _mm512_maskz_mul_ps(mask, _mm512_maskz_loadu_ps(mask, e + h * stride + j), scale);
          store(products[h] + j, x);
          most[h] = larger(most[h], x);
        }
      }
      if ((count + kElements - 1) / kElements % 2 == 1) {
        for (int h = 0; h < H; ++h) {
          store(products[h] + (count + kElements - 1) / kElements * kElements, zero());
        }
      }
      for (int h = 0; h < H; ++h) {
        const Scale16 scale(most[h]);
        const Floats factor = splat(scale.factor);
        units[h] = scale.unit;
        Ints total = splat(0);
        for (int64_t j = 0; j < count; j += kWords) {
          const Words x =
              to_words(load(products[h] + j), load(products[h] + j + kElements), factor);
          _mm512_store_si512(words[h] + j, x);
          if constexpr (kNibbles) total = dot_words(total, x, _mm512_set1_epi16(1));
        }
        sums[h] = kNibbles ? _mm512_reduce_add_epi32(total) : 0;
      }
    }
    Words pair(int h, int64_t j) const {
      int32_t x;
      std::memcpy(&x, words[h] + j, sizeof x);
      return splat(x);
    }
    Words two_pairs(int h, int64_t j) const {
      int64_t x;
      std::memcpy(&x, words[h] + j, sizeof x);
      return _mm512_set1_epi64(x);
    }
  };

  static constexpr int kSums = kNibbles ? 4 : 2;  // vectors of a group's sums

  // Adds one group of the values of keys j .. j + 3, of which the last may be the same row with
  // weights of zero.
  template <int H>
  static void add_values(const char* const (&blocks)[4], const Weights<H>& weights, int64_t j,
                         Ints (&acc)[H][kSums]) {
    if constexpr (kNibbles) {
      // [lane: key][word: two columns] as pairs of keys: element 2 w of keys 0 and 1, 2 w + 1 of
      // 2, 3.
      alignas(64) static constexpr int16_t kPairs16[kWords] = {
          0, 8,  16, 24, 1, 9,  17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
          4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
      Words x = _mm512_castsi128_si512(load_16(blocks[0]));
      x = _mm512_inserti32x4(x, load_16(blocks[1]), 1);
      x = _mm512_inserti32x4(x, load_16(blocks[2]), 2);
      x = _mm512_inserti32x4(x, load_16(blocks[3]), 3);
      x = _mm512_permutexvar_epi16(_mm512_load_si512(kPairs16), x);
      Words value[kSums];
#pragma GCC unroll 8
      for (int n = 0; n < kSums; ++n) value[n] = words(x, n);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) {
        const Words weight = weights.two_pairs(h, j);
#pragma GCC unroll 8
        for (int n = 0; n < kSums; ++n) acc[h][n] = dot_words(acc[h][n], value[n], weight);
      }
    } else {
#pragma GCC unroll 8
      for (int k = 0; k < 4; k += 2) {
        const Words a = _mm512_cvtepi8_epi16(load_32(blocks[k]));
        const Words b = _mm512_cvtepi8_epi16(load_32(blocks[k + 1]));
        const Words low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
#pragma GCC unroll 8
        for (int h = 0; h < H; ++h) {
          const Words weight = weights.pair(h, j + k);
          acc[h][0] = dot_words(acc[h][0], low, weight);
          acc[h][1] = dot_words(acc[h][1], high, weight);
        }
      }
    }
  }

  // The sums of a group's columns, in order.
  static void in_order(const Ints (&acc)[kSums], int32_t sum, Ints (&columns)[2]) {
    if constexpr (kNibbles) {
      Ints total[kSums];  // in both elements of a pair
#pragma GCC unroll 8
      for (int n = 0; n < kSums; ++n) {
        total[n] = _mm512_add_epi32(acc[n], _mm512_shuffle_epi32(acc[n], _MM_PERM_CDAB));
      }
      const Ints minus = splat(8 * sum);
#pragma GCC unroll 8
      for (int n = 0; n < 2; ++n) {
        const Ints both = _mm512_mask_blend_epi32(0xAAAA, total[2 * n], total[2 * n + 1]);
        columns[n] = _mm512_sub_epi32(both, minus);
      }
    } else {
      const Ints first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
      const Ints second = _mm512_add_epi32(first, splat(8));
      columns[0] = _mm512_permutex2var_epi32(acc[0], first, acc[1]);
      columns[1] = _mm512_permutex2var_epi32(acc[0], second, acc[1]);
    }
  }

  // Of columns of group g: out[h * out_stride + c] = sum_j e[h * stride + j] * values[j][c], or
  // that more where `more`. One group at a time: two are a tenth slower where four heads go
  // together.
  template <int H>
  static void blend_group(const float* e, int64_t stride, int64_t count, const char* values,
                          int64_t row, const ValueScales& scales, int64_t g, bool more, Pace& ahead,
                          float* out, int64_t out_stride) {
    Weights<H> weights;
    weights.make(e, stride, count, scales.of[g]);
    Ints acc[H][kSums];
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
#pragma GCC unroll 8
      for (int n = 0; n < kSums; ++n) acc[h][n] = splat(0);
    }
    const char* codes = values + g * kBlock + sizeof(uint16_t);
    int64_t j = 0;
    for (; j + 4 <= count; j += 4, codes += 4 * row) {
      ahead.go(4 * kBlock);
      add_values<H>(four_rows(codes, row, 4).rows, weights, j, acc);
    }
    if (j < count) add_values<H>(four_rows(codes, row, count - j).rows, weights, j, acc);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      Ints columns[2];
      in_order(acc[h], weights.sums[h], columns);
      float* to = out + h * out_stride + g * kGroup;
#pragma GCC unroll 8
      for (int n = 0; n < 2; ++n, to += kElements) {
        const Floats x = mul(to_float(columns[n]), splat(weights.units[h]));
        store(to, more ? add(load(to), x) : x);
      }
    }
  }

  // The weighted sums of values of H heads, whose e lie `count` apart. `next`: what is prefetched.
  template <int H>
  static void blend(const float* e, int64_t count, const char* values, int64_t row,
                    int64_t head_dim, const char* next, float* out, int64_t out_stride) {
    const int64_t groups = head_dim / kGroup;
    ValueScales scales;
    Pace ahead(next);
    for (int64_t first = 0; first < count; first += kKeys, values += kKeys * row) {
      const int64_t keys = std::min(kKeys, count - first);
      scales.gather(values, row, keys, groups);
      for (int64_t g = 0; g < groups; ++g) {
        blend_group<H>(e + first, count, keys, values, row, scales, g, first > 0, ahead, out,
                       out_stride);
      }
    }
  }
};

}  // namespace monolane::MONOLANE_ISA

#endif
