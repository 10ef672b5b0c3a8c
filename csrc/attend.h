// The query heads that share a KV head, over its keys: scores by the tiles of multiply.h (the keys
// are a matrix whose rows lie `stride` apart), then the softmax's partial sums and the weighted sum
// of the values. Three passes over `count` floats of scratch a head, not one fused pass: the
// scratch stays in cache, and the peak is known before the first exp, so no partial result is ever
// rescaled.
//
// Heads go together because widening a key costs as much as multiplying it: two heads took 45
// cycles a key each when each widened for itself. Memory works all the while: the pass over the
// keys prefetches the values, that over the values the keys that come next.
#pragma once

#include "multiply.h"
#include "pack.h"

namespace monolane::MONOLANE_ISA {

static inline float peak_of(const float* scores, int64_t count) {
  Floats peak = splat(-__builtin_inff());
  int64_t j = 0;
  for (; j + kElements <= count; j += kElements) peak = max(load(scores + j), peak);
  float top = max_element(peak);
  for (; j < count; ++j) top = scores[j] > top ? scores[j] : top;
  return top;
}

// scores[j] = e^(scores[j] - peak), and their sum: each element of a vector adds its own in the
// order of j, then the tree adds the elements.
// If all scores are -inf there is nothing to subtract, and every term is zero.
static inline float exponentials(float* scores, int64_t count, float peak) {
  const Floats shift = splat(peak == -__builtin_inff() ? 0.0f : peak);
  Floats total = zero();
  int64_t j = 0;
  for (; j + kElements <= count; j += kElements) {
    const Floats e = exp(sub(load(scores + j), shift));
    store(scores + j, e);
    total = add(total, e);
  }
  if (j < count) {
    const int64_t n = count - j;
    store_first(scores + j, exp(sub(load_first(scores + j, n), shift)), n);
    total = add(total, load_first(scores + j, n));
  }
  return sum(total);
}

// out[i][c] = sum_j e[i][j] * values[j][c] for H heads and N vectors of columns, each a chain of
// its own in the order of j. `next`: rows to prefetch in step, of as many bytes, or null.
template <class W, int H, int N>
static inline void blend(const float* e, int64_t count, const W* values, int64_t stride,
                         const char* next, float* out, int64_t out_stride) {
  Floats acc[H][N];
#pragma GCC unroll 8
  for (int i = 0; i < H; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) acc[i][n] = zero();
  }
  const int64_t ahead = next == nullptr ? 0 : stride * static_cast<int64_t>(sizeof(W));
  for (int64_t j = 0; j < count; ++j, values += stride, next += ahead) {
    for (int64_t b = 0; b < ahead; b += 64) prefetch_far(next + b);
    Floats weight[H];
#pragma GCC unroll 8
    for (int i = 0; i < H; ++i) weight[i] = splat(e[i * count + j]);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const Floats value = load(values + n * kElements);
#pragma GCC unroll 8
      for (int i = 0; i < H; ++i) acc[i][n] = fma(weight[i], value, acc[i][n]);
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
template <class W, int H, int N>
static inline void blend_columns(const float* e, int64_t count, const W* values, int64_t stride,
                                 const char* next, int64_t head_dim, int64_t c, float* out,
                                 int64_t out_stride) {
  for (; c + N * kElements <= head_dim; c += N * kElements) {
    blend<W, H, N>(e, count, values + c, stride, next, out + c, out_stride);
    next = nullptr;  // once is enough
  }
  if constexpr (N > 1) {
    return blend_columns<W, H, N - 1>(e, count, values, stride, next, head_dim, c, out, out_stride);
  }
  if (c == head_dim) return;
  for (int i = 0; i < H; ++i) {
    Floats acc = zero();
    for (int64_t j = 0; j < count; ++j) {
      acc = fma(splat(e[i * count + j]), load_first(values + j * stride + c, head_dim - c), acc);
    }
    store_first(out + i * out_stride + c, acc, head_dim - c);
  }
}

// As many accumulators as leave registers for a value and the weights.
template <int H>
constexpr int kBlendVectors = std::min(8, (kRegisters - H - 2) / H);

template <class W, int H>
static void attend_heads(const float* q, const W* keys, const W* values, int64_t stride,
                         int64_t count, int64_t head_dim, float scale, const char* next,
                         float* scores, float* partial) {
  using Dot = FloatDot<W>;
  constexpr int64_t kQuery = odd_lines(kMaxHeadDim / 16) / 4;
  alignas(64) float queries[H * kQuery];
  const int64_t query_bytes = Dot::token_bytes(head_dim);
  char* packed = reinterpret_cast<char*>(queries);
  for (int i = 0; i < H; ++i) {
    pack_f32(q + i * head_dim, head_dim, reinterpret_cast<float*>(packed + i * query_bytes));
  }
  const Dot dot{keys, head_dim, stride};
  Stream stream{reinterpret_cast<const char*>(values), 0};
  const Columns columns{0, head_dim};
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    tile<Dot, 4, H, Fetch::kNext, false>(dot, j, packed, query_bytes, columns, stream, nullptr,
                                         {scores + j, count});
  }
  for (; j < count; ++j) {
    tile<Dot, 1, H, Fetch::kNext, false>(dot, j, packed, query_bytes, columns, stream, nullptr,
                                         {scores + j, count});
  }
  const int64_t out_stride = head_dim + 2;
  for (int i = 0; i < H; ++i) {
    float* own = scores + i * count;
    for (j = 0; j < count; ++j) own[j] *= scale;
    float* peak = partial + i * out_stride + head_dim;
    peak[0] = peak_of(own, count);
    peak[1] = exponentials(own, count, peak[0]);
  }
  blend_columns<W, H, kBlendVectors<H>>(scores, count, values, stride, next, head_dim, 0, partial,
                                        out_stride);
}

template <class W>
static void attend_as(const float* q, int64_t heads, const W* keys, const W* values, int64_t stride,
                      int64_t count, int64_t head_dim, float scale, const char* next, float* scores,
                      float* partial) {
  constexpr int kMany = kRegisters == 32 ? kAttendHeads : 2;
  const auto run = [&]<int H>() {
    attend_heads<W, H>(q, keys, values, stride, count, head_dim, scale, heads == H ? next : nullptr,
                       scores, partial);
    q += H * head_dim;
    partial += H * (head_dim + 2);
    heads -= H;
  };
  while (heads >= kMany) run.template operator()<kMany>();
  while (heads >= 2) run.template operator()<2>();
  while (heads >= 1) run.template operator()<1>();
}

static void attend(const float* q, int64_t heads, const void* keys, const void* values, Format kv,
                   int64_t stride, int64_t count, int64_t head_dim, float scale, const void* next,
                   float* scores, float* partial) {
  const auto run = [&](auto w) {
    using W = decltype(w);
    attend_as(q, heads, static_cast<const W*>(keys), static_cast<const W*>(values), stride, count,
              head_dim, scale, static_cast<const char*>(next), scores, partial);
  };
  switch (kv) {
    case Format::kF32:
      run(float{});
      break;
    case Format::kBf16:
      run(Bf16{});
      break;
    case Format::kF16:
      run(F16{});
      break;
    default:
      break;  // a cache holds no codes
  }
}

}  // namespace monolane::MONOLANE_ISA
