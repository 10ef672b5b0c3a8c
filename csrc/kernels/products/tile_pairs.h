// Products of bfloat16 with bfloat16 by tiles (tiles.h), for passes of every width.
//
// Weights are the left side just as a file has them, 16 rows of 32 columns, so a mapped file is
// multiplied in place. The right side has 16 tokens beside each other, their pairs of columns below
// each other. One token is packed like that anyway; more are brought into it once a call.
//
// A dot of tiles has an order of its own: even and odd columns of 32 are summed apart, each in 16
// steps, and both together are added to the sum so far. Vectors have another (dot.h, PairDot), so
// one token goes through tiles, too. Rows are read 16 at a time then, and that costs nothing: on
// two cores of an Intel Xeon (family 6 model 167) one token reads 29 to 30 GB/s of the 32 that
// reading alone gives, and a tile is multiplied in a tenth of the time that memory takes for it.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/isa/tiles.h"
#include "kernels/products/panel_dot.h"

namespace monolane::MONOLANE_ISA {

// Bytes of a packed token, and the token: bfloat16, zeros up to a whole tile.
static inline int64_t pair_token_bytes(int64_t cols) { return odd_lines((cols + 31) / 32); }
static inline void pack_pairs(const float* x, int64_t cols, int64_t width, void* packed) {
  const int64_t bytes = pair_token_bytes(cols);
  for (int64_t t = 0; t < width; ++t, x += cols) {
    auto* out = reinterpret_cast<uint16_t*>(static_cast<char*>(packed) + t * bytes);
    std::memset(out, 0, static_cast<size_t>(bytes));
    for (int64_t k = 0; k < cols; ++k) out[k] = float_to_bf16(x[k]);
  }
}

constexpr int64_t kPairColumns = kTileRowBytes / 2;  // of a tile
constexpr int64_t kSideTokens = kTileRowBytes / 4;   // of a right side
constexpr int64_t kSideBytes = kTileRows * kTileRowBytes;

// 16 numbers of 32 bits of 16 rows, `stride` bytes apart, of which the first `rows` are there and
// others count as zeros; to [16][16], a column a row.
static inline void transpose(const char* from, int64_t stride, int64_t rows, char* to) {
  typedef uint32_t Words __attribute__((vector_size(64)));
  Words x[16];
  for (int64_t r = 0; r < 16; ++r) {
    x[r] = Words{};
    if (r < rows) std::memcpy(&x[r], from + r * stride, sizeof x[r]);
  }
  // Quarters of a square of 2 S rows trade places: S = 1, 2, 4, 8.
  const auto trade = [&]<int S, int... i>(std::integral_constant<int, S>,
                                          std::integer_sequence<int, i...>) MONOLANE_INLINE {
    for (int r = 0; r < 16; ++r) {
      if (r & S) continue;
      const Words a = x[r], b = x[r + S];
      x[r] = __builtin_shufflevector(a, b, ((i & S) ? 16 + i - S : i)...);
      x[r + S] = __builtin_shufflevector(a, b, ((i & S) ? 16 + i : i + S)...);
    }
  };
  constexpr std::make_integer_sequence<int, 16> all;
  trade(std::integral_constant<int, 1>(), all);
  trade(std::integral_constant<int, 2>(), all);
  trade(std::integral_constant<int, 4>(), all);
  trade(std::integral_constant<int, 8>(), all);
  for (int r = 0; r < 16; ++r) std::memcpy(to + r * 64, &x[r], sizeof x[r]);
}

// The weights: bfloat16 [rows, cols].
struct PairRows {
  const Bf16* data;
  int64_t rows, cols;

  // 16 rows from `row` on by 32 columns from k on; zeros where there are none.
  template <int kTile>
  MONOLANE_INLINE void load(Tiles& tiles, int64_t row, int64_t k) const {
    const Bf16* from = data + row * cols + k;
    if (row + kTileRows <= rows && k + kPairColumns <= cols) {
      return tiles.load<kTile>(from, 2 * cols);
    }
    alignas(64) Bf16 edge[kTileRows][kPairColumns] = {};
    const int64_t some = std::min(cols - k, kPairColumns);
    for (int64_t r = 0; r < std::min<int64_t>(rows - row, kTileRows); ++r) {
      std::copy(from + r * cols, from + r * cols + some, edge[r]);
    }
    tiles.load<kTile>(edge, kTileRowBytes);
  }
};

// The tokens as right sides: of each 16 tokens, one behind the other, those of 32 columns each.
struct PairTokens {
  const char* data;
  int64_t side_stride;  // bytes from 16 tokens to the next 16
  int64_t column_bytes, row_bytes;

  const char* at(int64_t side, int64_t k) const {
    return data + side * side_stride + k / kPairColumns * column_bytes;
  }
};

// So many bytes from the beginning of a line on; of what was there before, nothing is kept.
template <typename T>
static inline T* lines_of(std::vector<char>& room, size_t bytes) {
  if (room.size() < bytes + 63) room.resize(bytes + 63);
  return reinterpret_cast<T*>(room.data() + (-reinterpret_cast<intptr_t>(room.data()) & 63));
}

// One token is a right side of 16 rows of 4 bytes where it lies; others are brought into `room`, 16
// at a time, and of tokens that are not there zeros.
static inline PairTokens pair_tokens(const char* packed, int64_t width, int64_t cols,
                                     std::vector<char>& room) {
  if (width == 1) return {packed, 0, kTileRowBytes, 4};
  const int64_t sides = (width + kSideTokens - 1) / kSideTokens;
  const int64_t steps = (cols + kPairColumns - 1) / kPairColumns;
  const int64_t stride = pair_token_bytes(cols);
  char* to = lines_of<char>(room, sides * steps * kSideBytes);
  for (int64_t s = 0; s < sides; ++s) {
    const char* from = packed + s * kSideTokens * stride;
    for (int64_t k = 0; k < steps; ++k) {
      transpose(from + k * kTileRowBytes, stride, width - s * kSideTokens,
                to + (s * steps + k) * kSideBytes);
    }
  }
  return {to, steps * kSideBytes, kSideBytes, kTileRowBytes};
}

// A strip of 16 rows by S right sides. One strip at a time, which is 16 streams: the second level
// of an Intel core follows one in each of 32 pages. They are prefetched a little ahead: by 64
// tokens of 3,072 columns both cores read 23.8 GB/s of weights so, 23.0 without, and 22 by two
// strips at a time. Farther ahead is slower: tokens come from the second level meanwhile, and lines
// in flight are few. Of the columns begin .. end - 1; those before are in `sums`.
template <int S>
MONOLANE_INLINE static inline void add_strip(Tiles& tiles, const PairRows& rows, int64_t row,
                                             int64_t begin, int64_t end, const PairTokens& tokens,
                                             float* sums) {
  constexpr int kLeft = S, kRight = S + 1, kRights = std::min(kTiles - kRight, S);
  constexpr int64_t kAhead = 4 * kPairColumns;
  each<S>([&](auto s) MONOLANE_INLINE {
    begin == 0 ? tiles.zero<s>()
               : tiles.load<s>(sums + s * kTileRows * kSideTokens, tokens.row_bytes);
  });
  for (int64_t k = begin; k < end; k += kPairColumns) {
    const Bf16* next = rows.data + row * rows.cols + k + kAhead;
    if (k + kAhead >= end) next += kTileRows * rows.cols - (end - begin);  // of the next strip
    each<kTileRows>([&](auto i) MONOLANE_INLINE { prefetch_far(next + i * rows.cols); });
    rows.load<kLeft>(tiles, row, k);
    each<S>([&](auto s) MONOLANE_INLINE {
      constexpr int kSide = kRight + s % kRights;
      tiles.load<kSide>(tokens.at(s, k), tokens.row_bytes);
      tiles.dot_pairs<s, kLeft, kSide>();
    });
  }
  each<S>([&](auto s) MONOLANE_INLINE {
    tiles.store<s>(sums + s * kTileRows * kSideTokens, tokens.row_bytes);
  });
}

// A strip's sums [sides][16][16], or by one token [16][1], to where the call writes: `count` rows.
static inline void put_strip(const float* sums, int64_t count, int64_t width, Output out) {
  if (width == 1) {
    std::copy(sums, sums + count, out.y);
    return;
  }
  alignas(64) float turned[kSideTokens][kTileRows];
  for (int64_t t = 0; t < width; t += kSideTokens, sums += kTileRows * kSideTokens) {
    transpose(reinterpret_cast<const char*>(sums), kTileRowBytes, kTileRows,
              reinterpret_cast<char*>(turned));
    for (int64_t i = 0; i < std::min(width - t, kSideTokens); ++i) {
      float* y = out.y + (t + i) * out.stride;
      if (count == kTileRows) {
        std::memcpy(y, turned[i], sizeof turned[i]);  // a line: not a call
      } else {
        std::copy(turned[i], turned[i] + count, y);
      }
    }
  }
}

constexpr int64_t kTokenBytes = 1 << 20;
constexpr int64_t kAsideRows = 1024;  // whose sums by 96 tokens take 384 KB
constexpr int kMostSides = 6;  // at once: a tile of sums each, and two for what is multiplied
static_assert(kMaxWidth <= kMostSides * kSideTokens);

// Calls run(S) for so many right sides, 1 to 6.
template <int S = 1, typename Run>
MONOLANE_INLINE static inline void by_sides(int64_t sides, const Run& run) {
  if constexpr (S < kMostSides) {
    if (sides > S) return by_sides<S + 1>(sides, run);
  }
  run(std::integral_constant<int, S>());
}

// Columns whose tokens take half of a second level of 2 MB, which they leave for each strip anew.
static inline int64_t block_of_pairs(int64_t cols, int64_t width) {
  const int64_t bytes = cols * 2 * width, blocks = (bytes + kTokenBytes - 1) / kTokenBytes;
  const int64_t steps = (cols + kPairColumns - 1) / kPairColumns;
  return (steps + blocks - 1) / blocks * kPairColumns;
}

template <int S>
static void multiply_strips(const PairRows& rows, int64_t begin, int64_t end,
                            const PairTokens& tokens, int64_t width, Output out) {
  TileShape shapes[kTiles];  // sums, a left side, right sides
  for (int i = 0; i < kTiles; ++i) {
    shapes[i] = {kTileRows, i == S ? kTileRowBytes : static_cast<int>(tokens.row_bytes)};
  }
  Tiles tiles(shapes);
  constexpr int64_t kSums = S * kTileRows * kSideTokens;  // of a strip
  alignas(64) float one[kSums];
  const int64_t cols = rows.cols, step = block_of_pairs(cols, width);
  const int64_t most = step < cols ? kAsideRows : kTileRows;  // whose sums are put aside
  static thread_local std::vector<char> room;
  float* first = step < cols ? lines_of<float>(room, kAsideRows / kTileRows * sizeof one) : one;
  for (int64_t r = begin; r < end; r += most) {
    const int64_t last = std::min(end, r + most);
    for (int64_t k = 0; k < cols; k += step) {
      float* sums = first;
      for (int64_t row = r; row < last; row += kTileRows, sums += kSums) {
        add_strip<S>(tiles, rows, row, k, std::min(cols, k + step), tokens, sums);
        if (k + step < cols) continue;
        put_strip(sums, std::min<int64_t>(end - row, kTileRows), width,
                  {out.y + (row - begin), out.stride});
      }
    }
  }
}

static void multiply_pairs(const Matrix& w, int64_t begin, int64_t end, const void* packed,
                           int64_t width, Output out) {
  static thread_local std::vector<char> room;  // for 96 tokens of 12,288 columns 2.3 MB
  const PairRows rows{static_cast<const Bf16*>(w.data), w.rows, w.cols};
  const PairTokens tokens = pair_tokens(static_cast<const char*>(packed), width, w.cols, room);
  by_sides((width + kSideTokens - 1) / kSideTokens,
           [&](auto sides) { multiply_strips<sides>(rows, begin, end, tokens, width, out); });
}

}  // namespace monolane::MONOLANE_ISA
