// Eight registers of 16 rows by 64 bytes, and products of bytes or of bfloat16 between them: the
// processor's (AMX), or emulated, for machines without. Both have the same operations, so a kernel
// that is written over them is proven everywhere. They compute the same bits: of integers sums are
// exact, and those of bfloat16 are emulated in the order that Intel's manual gives, which an Intel
// Xeon (family 6 model 167) keeps (tests/cpu/test_tiles.py, on machines with tiles).
//
// Not by the compiler's intrinsics: gcc 12's _tile_loadconfig names 8 of the 64 bytes that it
// reads, and the stores to the others are dropped as dead; its loads do not say that they read
// memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/isa/half.h"

namespace monolane::MONOLANE_ISA {

constexpr int kTiles = 8;
constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

struct TileShape {
  int rows;       // at most kTileRows
  int row_bytes;  // at most kTileRowBytes, a multiple of 4
};

#ifdef __AMX_INT8__
// One at a time in a thread, and in every thread its own: registers and their shapes are a
// thread's.
class Tiles {
 public:
  explicit Tiles(const TileShape (&shapes)[kTiles]) {
    Config config{};
    config.palette = 1;
    for (int i = 0; i < kTiles; ++i) {
      config.rows[i] = static_cast<uint8_t>(shapes[i].rows);
      config.row_bytes[i] = static_cast<uint16_t>(shapes[i].row_bytes);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));  // all of it: no store to it is dead
  }
  // Or the thread's tiles are saved whenever another takes its core.
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // `stride` in bytes, from row to row.
  template <int kTile>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  // sum[m][n] += left[m][4 k + i] * right[k][4 n + i] over k and i < 4: int32 of int8 and int8.
  template <int kSum, int kLeft, int kRight>
  void dot() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }

  // sum[m][n] += e + o, float of bfloat16: e of left[m][2 k] * right[k][2 n] over k, o of the odd
  // ones behind them, each a chain of fused steps from zero. Subnormal numbers count as zeros.
  template <int kSum, int kLeft, int kRight>
  void dot_pairs() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }

  static int64_t emulated_dots() { return 0; }

 private:
  struct alignas(64) Config {  // as LDTILECFG reads it
    uint8_t palette, start_row;
    uint8_t zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Config) == 64);
};
#else
class Tiles {
 public:
  explicit Tiles(const TileShape (&shapes)[kTiles]) {
    for (int i = 0; i < kTiles; ++i) {
      const TileShape s = shapes[i];
      require(s.rows >= 1 && s.rows <= kTileRows && s.row_bytes >= 4 &&
                  s.row_bytes <= kTileRowBytes && s.row_bytes % 4 == 0,
              "1 to 16 rows of 4 to 64 bytes, a multiple of 4");
      shapes_[i] = s;
    }
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  void zero() {
    std::memset(bytes_[kTile], 0, sizeof bytes_[kTile]);
  }
  template <int kTile>
  void load(const void* from, int64_t stride) {
    zero<kTile>();
    for (int r = 0; r < shapes_[kTile].rows; ++r) {
      std::memcpy(bytes_[kTile][r], static_cast<const char*>(from) + r * stride, row_bytes(kTile));
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride) {
    for (int r = 0; r < shapes_[kTile].rows; ++r) {
      std::memcpy(static_cast<char*>(to) + r * stride, bytes_[kTile][r], row_bytes(kTile));
    }
  }
  template <int kSum, int kLeft, int kRight>
  void dot() {
    check<kSum, kLeft, kRight>();
    const TileShape sum = shapes_[kSum], right = shapes_[kRight];
    for (int m = 0; m < sum.rows; ++m) {
      int32_t sums[kTileRowBytes / 4];
      std::memcpy(sums, bytes_[kSum][m], sizeof sums);
      for (int k = 0; k < right.rows; ++k) {
        const int8_t* x = bytes_[kLeft][m] + 4 * k;
        for (int n = 0; n < kTileRowBytes / 4; ++n) {  // zeros beyond the row
          const int8_t* w = bytes_[kRight][k] + 4 * n;
          sums[n] += x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3];
        }
      }
      std::memcpy(bytes_[kSum][m], sums, sizeof sums);
    }
    ++dots_;
  }

  template <int kSum, int kLeft, int kRight>
  void dot_pairs() {
    check<kSum, kLeft, kRight>();
    const TileShape sum = shapes_[kSum], right = shapes_[kRight];
    for (int m = 0; m < sum.rows; ++m) {
      for (int n = 0; n < sum.row_bytes / 4; ++n) {
        float even = 0, odd = 0, all;
        for (int k = 0; k < right.rows; ++k) {
          even = flushed(std::fma(pair(kLeft, m, 2 * k), pair(kRight, k, 2 * n), even));
          odd = flushed(std::fma(pair(kLeft, m, 2 * k + 1), pair(kRight, k, 2 * n + 1), odd));
        }
        std::memcpy(&all, bytes_[kSum][m] + 4 * n, sizeof all);
        all = flushed(flushed(all) + flushed(even + odd));
        std::memcpy(bytes_[kSum][m] + 4 * n, &all, sizeof all);
      }
    }
    ++dots_;
  }

  // By this thread so far.
  static int64_t emulated_dots() { return dots_; }

 private:
  // The processor faults.
  static void require(bool met, const char* expected) {
    if (!met) throw std::logic_error(std::string("tiles: expected ") + expected);
  }
  template <int kSum, int kLeft, int kRight>
  void check() const {
    static_assert(kSum != kLeft && kSum != kRight && kLeft != kRight);  // else they fault
    const TileShape sum = shapes_[kSum], left = shapes_[kLeft], right = shapes_[kRight];
    require(left.rows == sum.rows && left.row_bytes == 4 * right.rows &&
                right.row_bytes == sum.row_bytes,
            "a sum [M, N], a left side [M, K] and a right side [K / 4, 4 N]");
  }
  // Number i of a row of bfloat16.
  float pair(int tile, int row, int i) const {
    uint16_t bits;
    std::memcpy(&bits, bytes_[tile][row] + 2 * i, sizeof bits);
    return flushed(bf16_to_float(bits));
  }
  static float flushed(float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
  }
  size_t row_bytes(int tile) const { return static_cast<size_t>(shapes_[tile].row_bytes); }

  TileShape shapes_[kTiles];
  int8_t bytes_[kTiles][kTileRows][kTileRowBytes] = {};
  static inline thread_local int64_t dots_ = 0;
};
#endif

}  // namespace monolane::MONOLANE_ISA
