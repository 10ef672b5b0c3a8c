// The query heads that share a KV head, over its keys: scores as cached_rows.h makes them (the keys
// are a matrix whose rows lie `stride` apart), then the softmax's partial sums and the weighted sum
// of the values. Three passes over `count` floats of scratch a head, not one fused pass: the
// scratch stays in cache, and the peak is known before the first exp, so no partial result is ever
// rescaled.
//
// Queries go together because widening a key costs as much as multiplying it: two heads took 45
// cycles a key each when each widened for itself. They are the heads of a token, and in a prompt
// those of the tokens after it too: each sees a few keys more than the one before, so scores are
// made of all keys that any of a tile sees, values are summed of those that all see, and each
// query goes on alone. Rows are prefetched kRowsAhead before they are read, behind the last key the
// values, behind the last value the keys that come next.
#pragma once

#include <type_traits>

#include "kernels/attention/attend_quantized_kv.h"
#include "kernels/attention/cached_rows.h"
#include "kernels/attention/softmax.h"
#include "kernels/products/pack.h"

namespace monolane::MONOLANE_ISA {

// The weights of H queries, e[i][j] at e + i * stride + j, for the same `count` keys.
struct Weights {
  const float* e;
  int64_t count, stride;
};

// Whether sums begin, or go on from what `out` has. Known where it is compiled: decode, where sums
// only begin, asks nothing.
enum class Sums { kBegin, kGoOn };

// out[i][c] = sum_j e[i][j] * values[j][c] for H queries and N vectors of columns, each a chain of
// its own in the order of j. Rows are prefetched in step where `next` is not null, and behind the
// last one `next`.
template <Sums kSums, class Rows, int H, int N>
static inline void blend(const Weights& weights, const char* values, int64_t row_bytes,
                         const char* next, float* out, int64_t out_stride) {
  constexpr int kUnit = Rows::kUnit;
  constexpr int64_t kBytes = Rows::bytes(kUnit * kElements);
  Floats acc[H][N];
#pragma GCC unroll 8
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      acc[i][n] = kSums == Sums::kBegin ? zero() : load(out + i * out_stride + n * kElements);
    }
  }
  const int64_t ahead = next == nullptr ? 0 : row_bytes;
  const int64_t turn = std::max<int64_t>(0, weights.count - kRowsAhead / row_bytes);
  const char* near = values + kRowsAhead;
  for (int64_t j = 0; j < weights.count; ++j, values += row_bytes, near += ahead) {
    if (j == turn) near = next;
    for (int64_t b = 0; b < ahead; b += 64) prefetch_near(near + b);
    Floats weight[H];
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) weight[i] = splat(weights.e[i * weights.stride + j]);
#pragma GCC unroll 8
    for (int n = 0; n < N; n += kUnit) {
      const typename Rows::Unit unit(values + n / kUnit * kBytes);
#pragma GCC unroll 8
      for (int v = 0; v < kUnit; ++v) {
        const Floats value = unit.vector(v);
#pragma GCC unroll 8
        for (int i = 0; i < H; ++i) acc[i][n + v] = fma(weight[i], value, acc[i][n + v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) store(out + i * out_stride + n * kElements, acc[i][n]);
  }
}

// Columns c .. head_dim - 1, N vectors at a time and then fewer: a lone vector waits for its own
// sum at each key, six hide that.
template <Sums kSums, class Rows, int H, int N>
static inline void blend_columns(const Weights& weights, const char* values, int64_t row_bytes,
                                 const char* next, int64_t head_dim, int64_t c, float* out,
                                 int64_t out_stride) {
  for (; c + N * kElements <= head_dim; c += N * kElements) {
    blend<kSums, Rows, H, N>(weights, values + Rows::bytes(c), row_bytes, next, out + c,
                             out_stride);
    next = nullptr;  // once is enough
  }
  if constexpr (N > Rows::kUnit) {
    return blend_columns<kSums, Rows, H, N - Rows::kUnit>(weights, values, row_bytes, next,
                                                          head_dim, c, out, out_stride);
  }
  if constexpr (Rows::kUnit == 1) {  // blocks are whole
    if (c == head_dim) return;
    for (int i = 0; i < H; ++i) {
      float* own = out + i * out_stride + c;
      Floats acc = kSums == Sums::kBegin ? zero() : load_first(own, head_dim - c);
      const char* row = values + Rows::bytes(c);
      for (int64_t j = 0; j < weights.count; ++j, row += row_bytes) {
        const typename Rows::Unit unit(row);
        const Floats weight = splat(weights.e[i * weights.stride + j]);
        acc = fma(weight, load_first(unit.columns, head_dim - c), acc);
      }
      store_first(own, acc, head_dim - c);
    }
  }
}

// As many accumulators as leave registers for a value and the weights, in whole units.
template <class Rows, int H>
constexpr int kBlendVectors =
    std::max(1, std::min(8, (kRegisters - H - 2) / H) / Rows::kUnit) * Rows::kUnit;

// What goes through keys together. The heads of one token lie one behind the other and see the same
// keys, which the compiler may know: decode asks for nothing else.
template <int H>
struct TokenTile {
  const float* q;  // [H, h]
  int64_t head_dim, seen;

  const float* query(int i) const { return q + i * head_dim; }
  int64_t count(int) const { return seen; }  // the keys that query i sees
  int64_t fewest() const { return seen; }
  int64_t most() const { return seen; }
};

// Of tokens that follow each other.
template <int H>
struct PromptTile {
  const float* q[H];
  int64_t seen[H];

  const float* query(int i) const { return q[i]; }
  int64_t count(int i) const { return seen[i]; }
  int64_t fewest() const { return *std::min_element(seen, seen + H); }
  int64_t most() const { return *std::max_element(seen, seen + H); }
};

// scores[i * count + j] = dot(query i, keys[j]); `next` is read next.
template <class Rows, int H, template <int> class Tile>
static void score_queries(const Tile<H>& tile, const char* keys, int64_t stride, int64_t count,
                          int64_t head_dim, const char* next, float* scores) {
  constexpr int64_t kQuery = odd_lines(kMaxHeadDim / 16) / 4;
  alignas(64) float queries[H * kQuery];
  const int64_t query_bytes = FloatDot<float>::token_bytes(head_dim);
  char* packed = reinterpret_cast<char*>(queries);
  for (int i = 0; i < H; ++i) {
    pack_f32(tile.query(i), head_dim, reinterpret_cast<float*>(packed + i * query_bytes));
  }
  Stream stream{keys + kRowsAhead, 0};
  const int64_t turn = std::max<int64_t>(0, count - kRowsAhead / Rows::bytes(stride)) / 4 * 4;
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    if (j == turn) stream.next = next;
    Rows::template score<4, H>(keys, stride, head_dim, j, packed, query_bytes, stream,
                               {scores + j, count});
  }
  for (; j < count; ++j) {
    Rows::template score<1, H>(keys, stride, head_dim, j, packed, query_bytes, stream,
                               {scores + j, count});
  }
}

template <class Rows, int H, template <int> class Tile>
static void attend_tile(const Tile<H>& tile, const char* keys, const char* values, int64_t stride,
                        int64_t head_dim, const ScoreRule& rule, const char* next, float* scores,
                        float* partial) {
  const int64_t row = Rows::bytes(stride), out_stride = head_dim + 2;
  const int64_t fewest = tile.fewest(), most = tile.most();
  if constexpr (Rows::kInWords) {  // a TokenTile
    Rows::template score<H>(tile.q, keys, row, most, head_dim, values, scores);
  } else {
    score_queries<Rows>(tile, keys, stride, most, head_dim, values, scores);
  }
  for (int i = 0; i < H; ++i) {
    float* own = scores + i * most;
    const int64_t count = tile.count(i);
    rule.apply(own, count);
    float* peak = partial + i * out_stride + head_dim;
    peak[0] = peak_of(own, count);
    peak[1] = exponentials(own, count, peak[0]);
  }
  if constexpr (Rows::kInWords) {
    Rows::template blend<H>(scores, most, values, row, head_dim, next, partial, out_stride);
  } else {
    blend_columns<Sums::kBegin, Rows, H, kBlendVectors<Rows, H>>(
        {scores, fewest, most}, values, row, next, head_dim, 0, partial, out_stride);
  }
  if constexpr (std::is_same_v<Tile<H>, PromptTile<H>>) {
    for (int i = 0; i < H; ++i) {
      const Weights rest{scores + i * most + fewest, tile.count(i) - fewest, most};
      if (rest.count == 0) continue;
      blend_columns<Sums::kGoOn, Rows, 1, kBlendVectors<Rows, 1>>(
          rest, values + fewest * row, row, nullptr, head_dim, 0, partial + i * out_stride,
          out_stride);
    }
  }
}

#ifdef __AVX512F__
template <Format kFormat>
using CodedRows = WordRows<kFormat>;
#else
template <Format kFormat>
using CodedRows = BlockRows<kFormat>;
#endif

// The heads of one token, up to 4 together.
template <class Rows>
static void attend_token(const float* q, int64_t heads, int64_t count, const char* keys,
                         const char* values, int64_t stride, int64_t head_dim,
                         const ScoreRule& rule, const char* next, float* scores, float* partial) {
  constexpr int kMany = kRegisters == 32 ? 4 : 2;
  const auto run = [&]<int H>() {
    attend_tile<Rows>(TokenTile<H>{q, head_dim, count}, keys, values, stride, head_dim, rule,
                      heads == H ? next : nullptr, scores, partial);
    q += H * head_dim;
    partial += H * (head_dim + 2);
    heads -= H;
  };
  while (heads >= kMany) run.template operator()<kMany>();
  if constexpr (kMany > 3) {
    if (heads == 3) run.template operator()<3>();
  }
  while (heads >= 2) run.template operator()<2>();
  while (heads >= 1) run.template operator()<1>();
}

// The heads of all tokens, up to 6 together.
template <class Rows>
static void attend_prompt(const Queries& queries, const char* keys, const char* values,
                          int64_t stride, int64_t head_dim, const ScoreRule& rule, const char* next,
                          float* scores, float* partial) {
  constexpr int kMany = kRegisters == 32 ? 6 : 2;
  static_assert(kMany <= kAttendQueries);
  int64_t left = queries.tokens * queries.heads, token = 0, head = 0;
  const auto run = [&]<int H>() {
    PromptTile<H> tile;
    for (int i = 0; i < H; ++i) {
      tile.q[i] = queries.q + token * queries.stride + head * head_dim;
      tile.seen[i] = queries.counts[token];
      if (++head == queries.heads) {
        head = 0;
        ++token;
      }
    }
    attend_tile<Rows>(tile, keys, values, stride, head_dim, rule, left == H ? next : nullptr,
                      scores, partial);
    partial += H * (head_dim + 2);
    left -= H;
  };
  while (left >= kMany) run.template operator()<kMany>();
  if constexpr (kMany > 4) {
    if (left >= 4) run.template operator()<4>();
    if (left == 3) run.template operator()<3>();
  }
  while (left >= 2) run.template operator()<2>();
  while (left >= 1) run.template operator()<1>();
}

template <class Rows>
static void attend_as(const Queries& queries, const char* keys, const char* values, int64_t stride,
                      int64_t head_dim, const ScoreRule& rule, const char* next, float* scores,
                      float* partial) {
  if constexpr (!Rows::kInWords) {
    if (queries.tokens > 1) {
      return attend_prompt<Rows>(queries, keys, values, stride, head_dim, rule, next, scores,
                                 partial);
    }
  }
  const int64_t last = queries.tokens - 1;
  for (int64_t t = 0; t <= last; ++t) {
    attend_token<Rows>(queries.q + t * queries.stride, queries.heads, queries.counts[t], keys,
                       values, stride, head_dim, rule, t == last ? next : nullptr, scores,
                       partial + t * queries.heads * (head_dim + 2));
  }
}

static void attend(const Queries& queries, const void* keys, const void* values, Format kv,
                   int64_t stride, int64_t head_dim, float scale, const void* next, float* scores,
                   float* partial) {
  const ScoreRule rule{scale, queries.cap};
  const auto run = [&]<class Rows>() {
    attend_as<Rows>(queries, static_cast<const char*>(keys), static_cast<const char*>(values),
                    stride, head_dim, rule, static_cast<const char*>(next), scores, partial);
  };
  switch (kv) {
    case Format::kF32:
      return run.template operator()<PlainRows<float>>();
    case Format::kBf16:
      return run.template operator()<PlainRows<Bf16>>();
    case Format::kF16:
      return run.template operator()<PlainRows<F16>>();
    case Format::kQ80:
      return run.template operator()<CodedRows<Format::kQ80>>();
    case Format::kQ40:
      return run.template operator()<CodedRows<Format::kQ40>>();
    default:
      return;  // refused before it comes here
  }
}

}  // namespace monolane::MONOLANE_ISA
