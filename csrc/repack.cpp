// GGUF's blocks into the rows that `multiply` reads: planes.h, or the int8 and int4 of our own, of
// which Q8_0 and Q4_0 hold the very codes. Exact: bits change their places, and no number is
// rounded. Plain loops that compilers vectorise, as in quantize.cpp, since this runs once per load.
//
// Layouts of blocks: ggml's ggml-common.h, and gguf.quants of the Python package.
#include <cstring>

#include "clones.h"
#include "half.h"
#include "kernels.h"
#include "planes.h"

#define MONOLANE_PART static inline __attribute__((always_inline))

namespace monolane {
namespace {

// Where the next group of each plane goes.
struct Cursor {
  uint8_t *low, *high, *scale, *super;
};

Cursor cursor_of(Format to, int64_t cols, void* row) {
  uint8_t* base = static_cast<uint8_t*>(row);
  const PlaneStarts starts = plane_starts(to, cols);
  return {base, base + starts.high, base + starts.scale, base + starts.super};
}

MONOLANE_PART void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

MONOLANE_PART uint32_t word(const void* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Bit c of a group's word is column c; bit i of byte j shall be column 4 i + j.
MONOLANE_PART uint32_t transpose(uint32_t bits) {
  uint32_t found = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t four = bits >> 4 * i & 15;
    found |= (four * 0x00204081u & 0x01010101u) << i;  // bit j of the four to byte j
  }
  return found;
}

MONOLANE_CLONES void repack_q8_0(const uint8_t* block, int64_t groups, uint8_t* codes,
                                 uint16_t* scales) {
  for (int64_t g = 0; g < groups; ++g, block += 34) {
    copy(scales + g, block, 2);
    copy(codes + g * 32, block + 2, 32);
  }
}

MONOLANE_CLONES void repack_q4_0(const uint8_t* block, int64_t groups, uint8_t* codes,
                                 uint16_t* scales) {
  for (int64_t g = 0; g < groups; ++g, block += 18) {
    copy(scales + g, block, 2);
    copy(codes + g * 16, block + 2, 16);
  }
}

MONOLANE_CLONES void repack_q4_1(const uint8_t* block, int64_t groups, Cursor to) {
  for (int64_t g = 0; g < groups; ++g, block += 20) {
    copy(to.scale + g * 4, block, 4);
    copy(to.low + g * 16, block + 4, 16);
  }
}

// Q5_0 and Q5_1: `scale` bytes of scale (and minimum), 32 high bits, low bits.
MONOLANE_CLONES void repack_q5(const uint8_t* block, int64_t groups, int64_t scale, Cursor to) {
  for (int64_t g = 0; g < groups; ++g, block += scale + 20) {
    for (int64_t i = 0; i < scale; ++i) to.scale[g * scale + i] = block[i];
    const uint32_t bits = transpose(word(block + scale));
    copy(to.high + g * 4, &bits, 4);
    copy(to.low + g * 16, block + scale + 4, 16);
  }
}

// 64 bytes hold group 2 j in their low and group 2 j + 1 in their high halves, 32 bytes a pair.
MONOLANE_PART void repack_low(const uint8_t* pair, uint8_t* low) {
  for (int c = 0; c < 16; ++c) {
    low[c] = static_cast<uint8_t>((pair[c] & 15) | pair[c + 16] << 4);
    low[16 + c] = static_cast<uint8_t>(pair[c] >> 4 | (pair[c + 16] & 0xF0));
  }
}

// The 6-bit scales and minima of 8 groups in 12 bytes, to bytes side by side.
MONOLANE_PART void repack_scales(const uint8_t* packed, uint8_t* pairs) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t scale = packed[i], minimum = packed[i + 4], last = packed[i + 8];
    pairs[2 * i] = scale & 63;
    pairs[2 * i + 1] = minimum & 63;
    pairs[2 * i + 8] = static_cast<uint8_t>((last & 15) | (scale >> 6) << 4);
    pairs[2 * i + 9] = static_cast<uint8_t>(last >> 4 | (minimum >> 6) << 4);
  }
}

MONOLANE_CLONES void repack_q4_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 144) {
    copy(to.super + s * 4, block, 4);
    repack_scales(block + 4, to.scale + s * 16);
    for (int j = 0; j < 4; ++j) repack_low(block + 16 + 32 * j, to.low + s * 128 + 32 * j);
  }
}

// Bit g of byte c of 32 is the fifth bit of column c of group g.
MONOLANE_CLONES void repack_q5_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 176) {
    copy(to.super + s * 4, block, 4);
    repack_scales(block + 4, to.scale + s * 16);
    for (int g = 0; g < 8; ++g) {
      uint32_t bits = 0;
      for (int i = 0; i < 8; ++i) bits |= (word(block + 16 + 4 * i) >> g & 0x01010101u) << i;
      copy(to.high + (s * 8 + g) * 4, &bits, 4);
    }
    for (int j = 0; j < 4; ++j) repack_low(block + 48 + 32 * j, to.low + s * 128 + 32 * j);
  }
}

// Of each 128 columns, 64 bytes hold group 0 and then 1 in their low, 2 and then 3 in their high
// halves; bit pair g of 32 bytes is the upper bits of group g.
MONOLANE_CLONES void repack_q6_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 210) {
    copy(to.scale + s * 16, block + 192, 16);
    copy(to.super + s * 2, block + 208, 2);
    for (int half = 0; half < 2; ++half) {
      const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
      uint8_t* out = to.low + s * 128 + 64 * half;
      for (int g = 0; g < 4; ++g) {
        const uint8_t* from = low + 32 * (g % 2);
        const int shift = g / 2 * 4;
        for (int c = 0; c < 16; ++c) {
          out[16 * g + c] =
              static_cast<uint8_t>((from[c] >> shift & 15) | (from[c + 16] >> shift & 15) << 4);
        }
        uint32_t bits[2] = {};
        for (int i = 0; i < 8; ++i) {  // columns 4 i .. 4 i + 3
          const uint32_t four = word(high + 4 * i) >> 2 * g & 0x03030303u;
          bits[i / 2 % 2] |= four << (i % 2 * 2 + i / 4 * 4);
        }
        copy(to.high + ((s * 2 + half) * 4 + g) * 8, bits, 8);
      }
    }
  }
}

}  // namespace

void repack_rows(Format from, const void* x, int64_t rows, int64_t cols, void* values,
                 uint16_t* scales) {
  const Format to = static_cast<Format>(row_of(from).repacked);
  const int64_t groups = cols / kGroup, supers = cols / kSuper;
  const uint8_t* row = static_cast<const uint8_t*>(x);
  uint8_t* out = static_cast<uint8_t*>(values);
  for (int64_t r = 0; r < rows; ++r, row += row_bytes(from, cols), out += row_bytes(to, cols)) {
    const Cursor cursor = cursor_of(to, cols, out);
    switch (from) {
      case Format::kQ80:
        repack_q8_0(row, groups, out, scales + r * groups);
        break;
      case Format::kQ40:
        repack_q4_0(row, groups, out, scales + r * groups);
        break;
      case Format::kQ41:
        repack_q4_1(row, groups, cursor);
        break;
      case Format::kQ50:
        repack_q5(row, groups, 2, cursor);
        break;
      case Format::kQ51:
        repack_q5(row, groups, 4, cursor);
        break;
      case Format::kQ4K:
        repack_q4_k(row, supers, cursor);
        break;
      case Format::kQ5K:
        repack_q5_k(row, supers, cursor);
        break;
      case Format::kQ6K:
        repack_q6_k(row, supers, cursor);
        break;
      default:
        break;  // no blocks
    }
  }
}

}  // namespace monolane
