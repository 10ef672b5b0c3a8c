// Attention over keys and values of bfloat16 by tiles (tiles.h). Up to 8 queries go through their
// keys together: the heads of a token, and those of the tokens behind it.
//
// Keys are left sides as they lie in the cache, 16 of them by 32 columns; queries are right sides.
// Values are right sides in which those of two keys lie below each other, brought into scratch 32
// keys at a time; the left sides are the weights, e^(score - peak).
//
// A query and a weight are sums of two bfloat16, `high` and `low`, each multiplied by itself: they
// err by 2^-16 of a number, where keys and values were rounded by 2^-9. Numbers that are too small
// for a normal bfloat16 count as zeros, and infinite keys and values bring NaN.
//
// A query gets the same bits whoever goes with it: its keys come in steps from the first on, and
// the step that its last key lies in is taken for it alone, with zeros behind that key. A weight of
// zero would not do for those: a value may be no number.
//
// Work on tiles and on vectors is mixed, and rows are prefetched kRowsAhead before they are read,
// in the order in which they lie. On two cores of an Intel Xeon (family 6 model 167), whose memory
// gave a plain loop 30 GB/s, eight heads of 128 over a KV head read 21 to 23 GB/s without the one
// or the other and 26 with both; by vectors 17.
#pragma once

#include <algorithm>

#include "kernels/attention/cached_rows.h"
#include "kernels/attention/softmax.h"
#include "kernels/products/tile_pairs.h"

namespace monolane::MONOLANE_ISA {

constexpr int kTileQueries = 8;                      // high and low fill 16 columns
constexpr int64_t kStepKeys = kTileRowBytes / 2;     // of a right side of values
constexpr int64_t kSideColumns = kTileRowBytes / 4;  // of one
constexpr int64_t kMostSteps = kMaxHeadDim / kPairColumns;
static_assert(kTileQueries <= kAttendQueries);

// The queries that go together; those of one token lie side by side and see the same keys.
struct TileQueries {
  int count = 0;
  const float* q[kTileQueries];
  int64_t seen[kTileQueries];

  void add(const float* query, int64_t keys) {
    q[count] = query;
    seen[count++] = keys;
  }
  int64_t fewest() const { return *std::min_element(seen, seen + count); }
  int64_t most() const { return *std::max_element(seen, seen + count); }
};

// x = high + low, but for 2^-16 of it. Cut, not rounded, `high` costs a shift.
static inline void split(const float* x, int64_t count, uint16_t* high, uint16_t* low) {
  for (int64_t k = 0; k < count; ++k) {
    high[k] = static_cast<uint16_t>(float_bits(x[k]) >> 16);
    low[k] = float_to_bf16(x[k] - bf16_to_float(high[k]));
  }
}

// Rows of 16 numbers of 32 bits: [C][16] to [16][C] and back, in log2 C rounds of shuffles.
template <int C>
struct Turn {
  static constexpr int64_t kBytes = C * 64;
  typedef uint32_t Words __attribute__((vector_size(64)));

  static void zip(const char* from, char* to) {
    rounds(from, to, [](const Words(&x)[C], Words(&y)[C], auto... i) MONOLANE_INLINE {
      for (int r = 0; r < C / 2; ++r) {
        y[2 * r] = __builtin_shufflevector(x[r], x[r + C / 2], (i % 2 * 16 + i / 2)...);
        y[2 * r + 1] = __builtin_shufflevector(x[r], x[r + C / 2], (i % 2 * 16 + i / 2 + 8)...);
      }
    });
  }
  static void unzip(const char* from, char* to) {
    rounds(from, to, [](const Words(&x)[C], Words(&y)[C], auto... i) MONOLANE_INLINE {
      for (int r = 0; r < C / 2; ++r) {
        y[r] = __builtin_shufflevector(x[2 * r], x[2 * r + 1], (2 * i)...);
        y[r + C / 2] = __builtin_shufflevector(x[2 * r], x[2 * r + 1], (2 * i + 1)...);
      }
    });
  }

 private:
  template <class Round>
  MONOLANE_INLINE static void rounds(const char* from, char* to, const Round& round) {
    Words x[2][C];
    std::memcpy(x[0], from, kBytes);
    int own = 0;
    for (int n = 1; n < C; n *= 2, own ^= 1) {
      [&]<int... i>(std::integer_sequence<int, i...>) MONOLANE_INLINE {
        round(x[own], x[own ^ 1], std::integral_constant<int, i>()...);
      }(std::make_integer_sequence<int, 16>());
    }
    std::memcpy(to, x[own], kBytes);
  }
};

// A tile's queries as right sides, one for each 32 columns of a head: `high` in the first half of
// their C columns, `low` in the second; zeros where there is none.
template <int C>
struct QuerySides {
  static constexpr int64_t kRowBytes = 4 * C;
  alignas(64) char steps[kMostSteps][kTileRows * kRowBytes];

  QuerySides(const TileQueries& tile, int64_t head_dim) {
    alignas(64) uint16_t halves[C][kPairColumns] = {};
    for (int64_t k = 0; k < head_dim; k += kPairColumns) {
      const int64_t some = std::min(head_dim - k, kPairColumns);
      if (some < kPairColumns) std::memset(halves, 0, sizeof halves);
      for (int i = 0; i < tile.count; ++i) split(tile.q[i] + k, some, halves[i], halves[C / 2 + i]);
      Turn<C>::zip(reinterpret_cast<const char*>(halves), steps[k / kPairColumns]);
    }
  }
};

// Rows of bfloat16 as a cache has them.
struct CachedPairs {
  const char* data;
  int64_t row_bytes, rows, columns;

  // R rows from j on, of N bytes from column k on, as they lie; where some are not there in `edge`,
  // with zeros in their place. `stride`: bytes from row to row.
  template <int64_t R, int64_t N>
  MONOLANE_INLINE const char* whole(int64_t j, int64_t k, int64_t bytes, char (&edge)[R][N],
                                    int64_t& stride) const {
    const char* from = data + j * row_bytes + 2 * k;
    const int64_t there = std::min(rows - j, R), some = std::min(2 * (columns - k), bytes);
    stride = row_bytes;
    if (there == R && some == bytes) return from;
    stride = N;
    for (int64_t r = 0; r < R; ++r) {
      const int64_t own = r < there ? some : 0;
      std::memcpy(edge[r], from + r * row_bytes, static_cast<size_t>(own));
      std::memset(edge[r] + own, 0, static_cast<size_t>(bytes - own));
    }
    return edge[0];
  }
};

// Scores of a tile's queries: scores[i * stride + j], all keys that any of them sees.
template <int C>
class TileScores {
  static constexpr int kSum = 0, kSide = 2, kKey = 4;  // two of each

 public:
  TileScores(const TileQueries& tile, const CachedPairs& keys, float scale, float* scores,
             int64_t stride)
      : sides_(tile, keys.columns),
        tiles_({{kTileRows, kRowBytes},
                {kTileRows, kRowBytes},
                {kTileRows, kRowBytes},
                {kTileRows, kRowBytes},
                {kTileRows, kTileRowBytes},
                {kTileRows, kTileRowBytes},
                {1, 4},  // not used
                {1, 4}}),
        keys_(keys),
        count_(tile.count),
        scale_(scale),
        scores_(scores),
        stride_(stride) {}

  void make() {
    // One strip ahead: the units work while vectors turn sums.
    multiply<0>(0);
    for (int64_t j = 0; j < keys_.rows; j += 2 * kTileRows) {
      const int64_t second = j + kTileRows, third = second + kTileRows;
      if (second < keys_.rows) multiply<1>(second);
      put<0>(j);
      if (second >= keys_.rows) break;
      if (third < keys_.rows) multiply<0>(third);
      put<1>(second);
    }
  }

 private:
  static constexpr int kRowBytes = QuerySides<C>::kRowBytes;

  // 16 keys from j on.
  template <int kOdd>
  MONOLANE_INLINE void multiply(int64_t j) {
    const CachedPairs keys = keys_;
    tiles_.template zero<kSum + kOdd>();
    for (int64_t k = 0; k < keys.columns; k += 2 * kPairColumns) {
      step<kOdd, 0>(keys, j, k);
      if (k + kPairColumns < keys.columns) step<kOdd, 1>(keys, j, k + kPairColumns);
    }
  }
  template <int kOdd, int kOddStep>
  MONOLANE_INLINE void step(const CachedPairs& keys, int64_t j, int64_t k) {
    alignas(64) char edge[kTileRows][kTileRowBytes];
    int64_t key_stride;
    const char* ahead = keys.data + j * keys.row_bytes + k * kTileRowBytes / 2 + kRowsAhead;
    each<kTileRows>([&](auto i) MONOLANE_INLINE { prefetch_far(ahead + i * 64); });
    tiles_.template load<kSide + kOddStep>(sides_.steps[k / kPairColumns], kRowBytes);
    const char* from = keys.whole(j, k, kTileRowBytes, edge, key_stride);
    tiles_.template load<kKey + kOddStep>(from, key_stride);
    tiles_.template dot_pairs<kSum + kOdd, kKey + kOddStep, kSide + kOddStep>();
  }

  template <int kOdd>
  MONOLANE_INLINE void put(int64_t j) {
    alignas(64) char sums[Turn<C>::kBytes];
    alignas(64) float turned[C][kTileRows];
    tiles_.template store<kSum + kOdd>(sums, kRowBytes);
    Turn<C>::unzip(sums, reinterpret_cast<char*>(turned));
    const Floats factor = splat(scale_);
    for (int i = 0; i < count_; ++i) {
      float* out = scores_ + i * stride_ + j;
      for (int e = 0; e < kTileRows; e += kElements) {
        store(out + e, mul(add(load(turned[i] + e), load(turned[C / 2 + i] + e)), factor));
      }
    }
  }

  const QuerySides<C> sides_;
  Tiles tiles_;
  const CachedPairs keys_;
  const int count_;
  const float scale_;
  float* scores_;
  const int64_t stride_;
};

// Weights in their own place as left sides: of each 32 `high` and then `low`, zeros behind the
// last.
static inline void split_in_place(float* e, int64_t count, int64_t stride) {
  alignas(64) uint16_t halves[2][kStepKeys];
  std::fill(e + count, e + stride, 0.0f);
  for (int64_t j = 0; j < stride; j += kStepKeys) {
    split(e + j, kStepKeys, halves[0], halves[1]);
    std::memcpy(e + j, halves, sizeof halves);
  }
}

// Weighted sums of values: out[i * out_stride + c] of query i.
class TileBlend {
  static constexpr int kSum = 0, kWeight = 2, kSide = 4;  // two of each
  // A right side for each 16 columns of a head, in pairs.
  typedef char Sides[2 * kMostSteps][kSideBytes];
  typedef float Sums[2 * kMostSteps][kTileQueries][kSideColumns];

 public:
  // `weights`: as split_in_place leaves them, `stride` floats from query to query.
  TileBlend(const TileQueries& tile, const CachedPairs& values, const float* weights,
            int64_t stride)
      : tiles_({{tile.count, kTileRowBytes},
                {tile.count, kTileRowBytes},
                {tile.count, kTileRowBytes},
                {tile.count, kTileRowBytes},
                {kTileRows, kTileRowBytes},
                {kTileRows, kTileRowBytes},
                {1, 4},  // not used
                {1, 4}}),
        tile_(tile),
        values_(values),
        weights_(weights),
        stride_(stride) {}

  void make(float* out, int64_t out_stride) {
    const int64_t fewest = tile_.fewest();
    if (fewest == values_.rows) {
      add(0, fewest, nullptr, together_);
      return put(together_, 0, tile_.count, out, out_stride);
    }
    const int64_t common = fewest / kStepKeys * kStepKeys;
    if (common > 0) add(0, common, nullptr, together_);
    for (int first = 0, last; first < tile_.count; first = last) {
      last = first + 1;
      while (last < tile_.count && tile_.seen[last] == tile_.seen[first]) ++last;
      if (tile_.seen[first] == common) {
        put(together_, first, last, out, out_stride);
        continue;
      }
      add(common, tile_.seen[first], common > 0 ? &together_ : nullptr, own_);
      put(own_, first, last, out, out_stride);
    }
  }

 private:
  // Sums of keys begin .. end - 1, behind those of `before`. Values of the next step are brought in
  // between products of this one.
  void add(int64_t begin, int64_t end, const Sums* before, Sums& sums) {
    const int64_t sides = (values_.columns + kPairColumns - 1) / kPairColumns * 2;
    Rows rows = bring(begin, end);
    for (int64_t p = 0; p < kTileRows; ++p) pair(rows, p, sides_[0]);
    for (int64_t j = begin, odd = 0; j < end; j += kStepKeys, odd ^= 1) {
      const bool more = j + kStepKeys < end;
      if (more) rows = bring(j + kStepKeys, end);
      tiles_.load<kWeight>(weights_ + j, 4 * stride_);
      tiles_.load<kWeight + 1>(weights_ + j + kStepKeys / 2, 4 * stride_);
      for (int64_t p = 0, c = 0; p < kTileRows; ++p) {
        if (more) pair(rows, p, sides_[odd ^ 1]);
        for (; c * kTileRows < (p + 1) * sides; c += 2) {
          multiply<0>(c, sides_[odd], before, sums);
          multiply<1>(c + 1, sides_[odd], before, sums);
        }
      }
      before = &sums;
    }
  }

  // 32 rows of values as they are paired.
  struct Rows {
    const char *from, *lie;  // `lie`: where they lie in the cache
    int64_t stride, bytes;
  };

  // Those from j on, of which those from `end` on count as zeros.
  MONOLANE_INLINE Rows bring(int64_t j, int64_t end) {
    CachedPairs seen = values_;
    seen.rows = end;
    Rows rows;
    rows.lie = values_.data + j * values_.row_bytes;
    rows.bytes = (values_.columns + kPairColumns - 1) / kPairColumns * kTileRowBytes;
    rows.from = seen.whole(j, 0, rows.bytes, edge_, rows.stride);
    return rows;
  }

  // Rows 2 p and 2 p + 1: each number of the one above that of the other.
  MONOLANE_INLINE static void pair(const Rows& rows, int64_t p, Sides& sides) {
    typedef uint16_t Halves __attribute__((vector_size(64)));
    const auto zip = [&]<int kFirst, int... i>(const Halves& a, const Halves& b, char* out,
                                               std::integral_constant<int, kFirst>,
                                               std::integer_sequence<int, i...>) MONOLANE_INLINE {
      const Halves x = __builtin_shufflevector(a, b, (kFirst + i % 2 * 32 + i / 2)...);
      std::memcpy(out, &x, sizeof x);
    };
    constexpr std::make_integer_sequence<int, 32> all;
    const char* from = rows.from + 2 * p * rows.stride;
    const char* ahead = rows.lie + 2 * p * rows.stride + kRowsAhead;
    for (int64_t n = 0, at = 0; at < rows.bytes; ++n, at += kTileRowBytes) {
      Halves a, b;
      prefetch_far(ahead + 2 * at);
      prefetch_far(ahead + 2 * at + 64);
      std::memcpy(&a, from + at, sizeof a);
      std::memcpy(&b, from + rows.stride + at, sizeof b);
      zip(a, b, sides[2 * n] + p * kTileRowBytes, std::integral_constant<int, 0>(), all);
      zip(a, b, sides[2 * n + 1] + p * kTileRowBytes, std::integral_constant<int, 16>(), all);
    }
  }

  template <int kOdd>
  MONOLANE_INLINE void multiply(int64_t c, const Sides& sides, const Sums* before, Sums& sums) {
    if (before == nullptr) {
      tiles_.zero<kSum + kOdd>();
    } else {
      tiles_.load<kSum + kOdd>((*before)[c], kTileRowBytes);
    }
    tiles_.load<kSide + kOdd>(sides[c], kTileRowBytes);
    tiles_.dot_pairs<kSum + kOdd, kWeight, kSide + kOdd>();
    tiles_.dot_pairs<kSum + kOdd, kWeight + 1, kSide + kOdd>();
    tiles_.store<kSum + kOdd>(sums[c], kTileRowBytes);
  }

  void put(const Sums& sums, int first, int last, float* out, int64_t out_stride) const {
    for (int i = first; i < last; ++i) {
      for (int64_t c = 0; c < values_.columns; c += kSideColumns) {
        const float* from = sums[c / kSideColumns][i];
        std::copy(from, from + std::min(values_.columns - c, kSideColumns),
                  out + i * out_stride + c);
      }
    }
  }

  alignas(64) Sides sides_[2];
  alignas(64) Sums together_, own_;
  alignas(64) char edge_[kStepKeys][2 * kMaxHeadDim];
  Tiles tiles_;
  const TileQueries& tile_;
  const CachedPairs values_;
  const float* weights_;
  const int64_t stride_;
};

static void attend_tile(const TileQueries& tile, const char* keys, const char* values,
                        int64_t row_bytes, int64_t head_dim, const ScoreRule& rule, float* scores,
                        float* partial) {
  const int64_t most = tile.most(), out_stride = head_dim + 2;
  const int64_t stride = scores_of(most);
  static_assert(scores_of(1) == kStepKeys);
  const auto score = [&]<int C>() {
    TileScores<C>(tile, {keys, row_bytes, most, head_dim}, rule.scale, scores, stride).make();
  };
  if (tile.count <= 2) {
    score.template operator()<4>();
  } else if (tile.count <= 4) {
    score.template operator()<8>();
  } else {
    score.template operator()<16>();
  }
  for (int i = 0; i < tile.count; ++i) {
    float *own = scores + i * stride, *peak = partial + i * out_stride + head_dim;
    rule.cap_scores(own, tile.seen[i]);
    peak[0] = peak_of(own, tile.seen[i]);
    peak[1] = exponentials(own, tile.seen[i], peak[0]);
    split_in_place(own, tile.seen[i], stride);
  }
  TileBlend(tile, {values, row_bytes, most, head_dim}, scores, stride).make(partial, out_stride);
}

static void attend_pairs(const Queries& queries, const void* keys, const void* values,
                         int64_t stride, int64_t head_dim, float scale, float* scores,
                         float* partial) {
  TileQueries tile;
  const ScoreRule rule{scale, queries.cap};
  const auto run = [&] {
    attend_tile(tile, static_cast<const char*>(keys), static_cast<const char*>(values), 2 * stride,
                head_dim, rule, scores, partial);
    partial += tile.count * (head_dim + 2);
    tile.count = 0;
  };
  for (int64_t t = 0; t < queries.tokens; ++t) {
    for (int64_t head = 0; head < queries.heads; ++head) {
      if (tile.count == kTileQueries) run();
      tile.add(queries.q + t * queries.stride + head * head_dim, queries.counts[t]);
    }
  }
  run();
}

}  // namespace monolane::MONOLANE_ISA
