// The matrix product over any policy of dot.h: tiles of R rows by T tokens, whose accumulators live
// in registers while k runs along a block of columns. Each weight comes from memory once: a block
// of rows is met by every token while it is in the second-level cache.
//
// Why blocks of columns: the loops below read the tokens of a tile once for each R rows. 8 tokens
// of 3072 bfloat16 fill a first-level cache of 48 KB, and from then on come from the second level
// beside the weights: four bytes of tokens for each byte of weights (bench/cpu/README.md). Between
// blocks the accumulators are put aside as they are.
//
// The order of the sum is the policy's step by step, then the vector's own tree: neither R, T, nor
// where a tile or a block begins enters it.
#pragma once

#include "kernels/products/dot.h"

namespace monolane::MONOLANE_ISA {

// Where one call writes: y[t * stride + r].
struct Output {
  float* y;
  int64_t stride;
};

template <class Dot, int R, int T>
static inline void multiply_add(const typename Dot::Left (&left)[R], const char* tokens,
                                int64_t token_stride, int64_t k, Floats (&acc)[R][T]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      acc[r][t] = Dot::accumulate(left[r], tokens + t * token_stride, k, acc[r][t]);
    }
  }
}

template <class Dot, int R, int T>
static inline void step(const Dot& dot, int64_t row, const char* tokens, int64_t token_stride,
                        int64_t k, Floats (&acc)[R][T]) {
  typename Dot::Left left[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) left[r] = dot.left(row + r, k);
  multiply_add<Dot, R, T>(left, tokens, token_stride, k, acc);
}

// The columns that do not fill a step, as a step whose other elements are zero.
template <class Dot, int R, int T>
static inline void last_step(const Dot& dot, int64_t row, const char* tokens, int64_t token_stride,
                             int64_t k, Floats (&acc)[R][T]) {
  typename Dot::Left left[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) left[r] = dot.left_first(row + r, k);
  multiply_add<Dot, R, T>(left, tokens, token_stride, k, acc);
}

template <int R, int T>
static inline void reduce(const Floats (&acc)[R][T], Output out) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    float* y = out.y + t * out.stride;
    int r = 0;
#pragma GCC unroll 2
    for (; r + 4 <= R; r += 4) {
      sum4(acc[r][t], acc[r + 1][t], acc[r + 2][t], acc[r + 3][t], y + r);
    }
#pragma GCC unroll 4
    for (; r < R; ++r) y[r] = sum(acc[r][t]);
  }
}

constexpr int64_t kBlockRows = 32;  // 16 and 64: up to 10 % slower, and no faster

// Accumulators of a block of rows between two blocks of columns: [tokens][kBlockRows].
template <int R, int T>
static inline void put_aside(const Floats (&acc)[R][T], float* aside) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(aside + (t * kBlockRows + r) * kElements, acc[r][t]);
  }
}

template <int R, int T>
static inline void take_up(const float* aside, Floats (&acc)[R][T]) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][t] = load(aside + (t * kBlockRows + r) * kElements);
  }
}

// A tile's sums where it begins: zero in the first block of columns.
template <int R, int T>
static inline void begin_sums(bool first, const float* aside, Floats (&acc)[R][T]) {
  if (!first) return take_up<R, T>(aside, acc);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[r][t] = zero();
  }
}

// How weights are brought in before they are needed. Measured: bench/cpu/README.md.
enum class Fetch {
  kNone,   // by the hardware alone
  kAhead,  // each step prefetches as many bytes as it uses, far_ahead() further on, in one stream
  kNext,   // the same, but the next block of rows
  kParts,  // the next block of rows in equal parts, one before each tile: memory works while tiles
           // compute
};

// One token in bfloat16 reads 63 % of the bandwidth on Intel without prefetches and 90 % with them;
// on Zen 5 97 % without and 90 % with them.
static inline bool needs_prefetch() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

// Bytes. One token, int8 and 4 bits, on two cores: Intel 25.8 and 23.5 GB/s at 8 KB, 27.4 and 25.2
// at 16, 27.9 and 25.5 at 32, 27.7 and 25.3 at 64; Zen 5 reads 4 % less at 32 KB than at 8.
static inline int64_t far_ahead() { return needs_prefetch() ? 32 << 10 : 8 << 10; }

// Where the stream of prefetches stands.
struct Stream {
  const char* next;
  int64_t part;  // bytes before each tile: kParts
};

template <Fetch kFetch>
static inline void fetch(Stream& stream, int64_t bytes) {
#pragma GCC unroll 16
  for (int64_t b = 0; b < bytes; b += 64) {
    prefetch_far(stream.next + b);
  }
  stream.next += bytes;
}

// Steps of a tile's loop body: a tile of one row and token is short, and the out-of-order window
// must reach far ahead into the row. Four: 97 % of the read bandwidth where one gave 88 %.
template <int R, int T>
constexpr int kUnroll = R * T == 1 ? 4 : 1;

// A block of columns; sums begin in the one at 0 and are written out by the one that ends at K.
struct Columns {
  int64_t begin, end;
};

// Rows row .. row + R - 1 by T tokens.
template <class Dot, int R, int T, Fetch kFetch, bool kCut>
static inline void tile(const Dot& dot, int64_t row, const char* tokens, int64_t token_stride,
                        Columns columns, Stream& stream, float* aside, Output out) {
  constexpr int kSteps = kUnroll<R, T>;
  constexpr bool kSteady = kFetch == Fetch::kAhead || kFetch == Fetch::kNext;
  Floats acc[R][T];
  begin_sums<R, T>(!kCut || columns.begin == 0, aside, acc);
  if constexpr (kFetch == Fetch::kParts) fetch<kFetch>(stream, stream.part);
  Stream ahead = stream;  // a copy: it stays in a register
  int64_t k = columns.begin;
  for (; k + kSteps * Dot::kStep <= columns.end; k += kSteps * Dot::kStep) {
    if constexpr (kSteady) fetch<kFetch>(ahead, kSteps * R * Dot::kStepBytes);
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      step<Dot, R, T>(dot, row, tokens, token_stride, k + s * Dot::kStep, acc);
    }
  }
  if constexpr (kSteps > 1) {
    for (; k + Dot::kStep <= columns.end; k += Dot::kStep) {
      step<Dot, R, T>(dot, row, tokens, token_stride, k, acc);
    }
  }
  stream = ahead;
  if constexpr (kCut) {
    if (columns.end < dot.cols) return put_aside<R, T>(acc, aside);
  }
  if (k < dot.cols) last_step<Dot, R, T>(dot, row, tokens, token_stride, k, acc);
  reduce<R, T>(acc, out);
}

// Rows begin .. end - 1 by `width` tokens, T at a time and then the rest. Rows run faster than
// tokens: a tile's tokens stay in the first-level cache.
template <class Dot, int R, int T, Fetch kFetch, bool kCut>
static inline void block(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                         int64_t width, Columns columns, Stream& stream, float* aside, Output out) {
  if constexpr (T > 0) {
    const int64_t stride = Dot::token_bytes(dot.cols);
    for (; width >= T; width -= T, tokens += T * stride, out.y += T * out.stride) {
      int64_t r = begin;
      for (; r + R <= end; r += R) {
        tile<Dot, R, T, kFetch, kCut>(dot, r, tokens, stride, columns, stream,
                                      aside + (r - begin) * kElements,
                                      {out.y + (r - begin), out.stride});
      }
      for (; r < end; ++r) {
        tile<Dot, 1, T, kFetch, kCut>(dot, r, tokens, stride, columns, stream,
                                      aside + (r - begin) * kElements,
                                      {out.y + (r - begin), out.stride});
      }
      aside += T * kBlockRows * kElements;
    }
    if (width > 0) {
      block<Dot, R, T - 1, kFetch, kCut>(dot, begin, end, tokens, width, columns, stream, aside,
                                         out);
    }
  }
}

// Columns of a block, such that the tokens of a tile leave room in a first-level cache of 48 KB.
constexpr int64_t kTileBytes = 32 << 10;
template <class Dot>
static inline int64_t block_columns(int64_t cols, int64_t tokens) {
  const int64_t fit = kTileBytes / (tokens * Dot::kTokenStepBytes);
  const int64_t steps = (cols + Dot::kStep - 1) / Dot::kStep;
  const int64_t blocks = (steps + fit - 1) / fit;
  return (steps + blocks - 1) / blocks * Dot::kStep;
}

// kTokens: the largest width, for which accumulators can be put aside; 0: columns are not cut.
template <class Dot, int R, int T, Fetch kFetch, int kTokens>
static inline void rows(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                        int64_t width, Output out) {
  alignas(64) float aside[kTokens == 0 ? 1 : kTokens * kBlockRows * kElements];
  const int64_t step =
      kTokens == 0 ? dot.cols : block_columns<Dot>(dot.cols, std::min<int64_t>(width, T));
  const int64_t block_bytes = kBlockRows * dot.row_stride();
  Stream stream{nullptr, 0};
  if constexpr (kFetch == Fetch::kParts) {
    const int64_t tiles = (width / T + 1) * (kBlockRows / R) * ((dot.cols + step - 1) / step);
    stream.part = block_bytes / tiles / 64 * 64;
  }
  for (int64_t r = begin; r < end; r += kBlockRows) {
    // Anew for each block: a step may use a fraction of a byte, and columns beyond the last whole
    // steps are not fetched, so the stream would drift.
    stream.next = dot.row(r) + (kFetch == Fetch::kAhead ? far_ahead() : block_bytes);
    const int64_t last = std::min(end, r + kBlockRows);
    for (int64_t k = 0; k < dot.cols; k += step) {
      const Columns columns{k, std::min(dot.cols, k + step)};
      block<Dot, R, T, kFetch, (kTokens > 0)>(dot, r, last, tokens, width, columns, stream, aside,
                                              {out.y + (r - begin), out.stride});
    }
  }
}

// One token.
template <class Dot>
static void multiply_one(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                         Output out) {
  if constexpr (Dot::kLight) {
    if (!needs_prefetch()) return rows<Dot, 1, 1, Fetch::kNone, 0>(dot, begin, end, tokens, 1, out);
  }
  rows<Dot, 1, 1, Fetch::kAhead, 0>(dot, begin, end, tokens, 1, out);
}

// Up to kFew tokens, where memory is the limit: one row, or two, at a time, since few sequential
// streams are what it serves best. Two short rows share the cost of their ends. Narrower vectors
// need four to hide the latency of their longer chains; these four streams Zen 3 fetches best by
// itself (one token in bfloat16: 36.5 GB/s, and 31.1 with prefetches).
template <class Dot>
static void multiply_few(const Dot& dot, int64_t begin, int64_t end, const char* tokens,
                         int64_t width, Output out) {
  if constexpr (kElements < 16) {
    if (kElements == 8 && width == 1 && !needs_prefetch()) {
      return rows<Dot, Dot::kWideRows, 1, Fetch::kNone, 0>(dot, begin, end, tokens, 1, out);
    }
    rows<Dot, Dot::kWideRows, Dot::kWideTokens, Fetch::kAhead, 0>(dot, begin, end, tokens, width,
                                                                  out);
  } else if (width == 1) {
    multiply_one(dot, begin, end, tokens, out);
  } else if (block_columns<Dot>(dot.cols, width) < dot.cols) {
    rows<Dot, 2, 8, Fetch::kNext, 8>(dot, begin, end, tokens, width, out);
  } else if (width <= Dot::kRowTokens) {
    rows<Dot, 1, Dot::kRowTokens, Fetch::kAhead, 0>(dot, begin, end, tokens, width, out);
  } else {
    rows<Dot, 2, 8, Fetch::kAhead, 0>(dot, begin, end, tokens, width, out);
  }
}

template <class Dot>
static void multiply_by(const Dot& dot, int64_t begin, int64_t end, const void* packed,
                        int64_t width, Output out) {
  constexpr int kFew = kElements < 16 ? Dot::kWideTokens : 8;
  const char* tokens = static_cast<const char*>(packed);
  if (width <= kFew) return multiply_few(dot, begin, end, tokens, width, out);
  rows<Dot, Dot::kWideRows, Dot::kWideTokens, Fetch::kParts, kMaxWidth>(dot, begin, end, tokens,
                                                                        width, out);
}

}  // namespace monolane::MONOLANE_ISA
