// How attention reads the rows of a cache, by their format: numbers one vector after the other, or
// codes in blocks of 32, each behind its scale. A policy of attend.h says how columns are brought
// out of a row, and how the scores of keys are made.
//
// Codes are widened to code * scale, exactly (19 bits at most), and multiplied as floats; with
// AVX-512 they are multiplied as they are (attend_quantized_kv.h).
#pragma once

#include "kernels/products/multiply.h"

namespace monolane::MONOLANE_ISA {

// Bytes from where a row is read to where rows are prefetched, in the order in which they lie. On
// two cores of an Intel Xeon (family 6 model 167), whose memory gave a plain loop 30 GB/s, four
// heads of 128 over bfloat16 read 27 to 28 GB/s so and 24 at 4 KB. It was 23 to 24 when the pass
// over the keys prefetched all values, and that over the values the next keys.
constexpr int64_t kRowsAhead = 2048;

// Rows of plain numbers, whose scores the tiles of multiply.h make: keys are a matrix.
template <class W>
struct PlainRows {
  static constexpr bool kInWords = false;
  static constexpr int kUnit = 1;  // vectors that are brought out together

  struct Unit {
    const W* columns;
    explicit Unit(const char* p) : columns(reinterpret_cast<const W*>(p)) {}
    Floats vector(int) const { return load(columns); }
  };
  static constexpr int64_t bytes(int64_t columns) {
    return columns * static_cast<int64_t>(sizeof(W));
  }

  // Of R keys from row j on, by H queries; `stream`: what is prefetched meanwhile.
  template <int R, int H>
  static inline void score(const char* keys, int64_t stride, int64_t head_dim, int64_t j,
                           const char* queries, int64_t query_bytes, Stream& stream, Output out) {
    using Dot = FloatDot<W>;
    const Dot dot{reinterpret_cast<const W*>(keys), head_dim, stride};
    tile<Dot, R, H, Fetch::kNext, false>(dot, j, queries, query_bytes, {0, head_dim}, stream,
                                         nullptr, out);
  }
};

// Rows of kQ80 or kQ40; the columns of a head are whole blocks.
template <Format kFormat>
struct BlockRows {
  static constexpr bool kInWords = false;
  static constexpr int kUnit = kGroup / kElements;
  static constexpr int64_t kBytes = row_bytes(kFormat, kGroup);

  struct Unit {
    const char* codes;
    Floats scale, minus_8 = {};
    explicit Unit(const char* block) : codes(block + sizeof(uint16_t)) {
      F16 half;
      std::memcpy(&half, block, sizeof half);
      scale = splat(half);
      if constexpr (kFormat == Format::kQ40) minus_8 = mul(splat(-8.0f), scale);
    }
    // `v` is a constant wherever loops are unrolled, which decides between the halves of a byte.
    Floats vector(int v) const {
      if constexpr (kFormat == Format::kQ80) {
        const auto* bytes = reinterpret_cast<const int8_t*>(codes);
        return mul(load_bytes_as_floats(bytes + v * kElements), scale);
      } else {
        constexpr int kHalf = kGroup / 2;
        const auto* bytes = reinterpret_cast<const uint8_t*>(codes) + v * kElements % kHalf;
        const Floats shifted = v * kElements < kHalf ? load_nibbles_as_floats<false>(bytes)
                                                     : load_nibbles_as_floats<true>(bytes);
        return fma(shifted, scale, minus_8);  // exact, even in two steps
      }
    }
  };
  static constexpr int64_t bytes(int64_t columns) { return row_bytes(kFormat, columns); }

  template <int R, int H>
  static inline void score(const char* keys, int64_t stride, int64_t head_dim, int64_t j,
                           const char* queries, int64_t query_bytes, Stream& stream, Output out) {
    const int64_t row = bytes(stride);
    const char* block = keys + j * row;
    Stream ahead = stream;  // a copy: it stays in a register
    Floats acc[R][H];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) acc[r][h] = zero();
    }
    for (int64_t k = 0; k < head_dim; k += kGroup, block += kBytes) {
      fetch<Fetch::kNext>(ahead, R * kBytes);
      const char* columns = queries + k * static_cast<int64_t>(sizeof(float));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Unit unit(block + r * row);
#pragma GCC unroll 8
        for (int v = 0; v < kUnit; ++v) {
          const Floats key = unit.vector(v);
#pragma GCC unroll 8
          for (int h = 0; h < H; ++h) {
            const auto* query = reinterpret_cast<const float*>(columns + h * query_bytes);
            acc[r][h] = fma(key, load(query + v * kElements), acc[r][h]);
          }
        }
      }
    }
    stream = ahead;
    reduce<R, H>(acc, out);
  }
};

}  // namespace monolane::MONOLANE_ISA
