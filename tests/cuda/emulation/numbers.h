// The number formats of the device, bit for bit, and the matrix instructions on top of them.
#pragma once

#include "schedule.h"

namespace emulator {

inline float float_of(u32 bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}
inline u32 bits_of(float v) {
  u32 bits;
  memcpy(&bits, &v, 4);
  return bits;
}

// ---- f16: five exponent bits, ten of mantissa ---------------------------------------------------
inline float half_to_float(u32 h) {
  u32 magnitude = (h & 0x7fff) << 13;
  // The exponent's bias changes from 15 to 127 by a multiplication, which normalises subnormals.
  float v = magnitude >= 0x0f800000u ? float_of(magnitude + 0x70000000u)  // infinity, NaN
                                     : float_of(magnitude) * 0x1p112f;
  return float_of(bits_of(v) | (h & 0x8000) << 16);
}
inline u32 float_to_half(float v) {  // to nearest even; NaN is 0x7fff, as PTX has it
  u32 bits = bits_of(v), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                       // below 2^-14: steps of 2^-24, as 0.5 has
    return sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u);
  }
  return sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
}

// ---- bf16: the upper half of a float -----------------------------------------------------------
inline float bf16_to_float(u32 h) { return float_of(h << 16); }
inline u32 float_to_bf16(float v) {
  u32 bits = bits_of(v);
  if ((bits & 0x7fffffff) > 0x7f800000u) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// ---- e4m3: four exponent bits, three of mantissa, no infinity, one NaN
// ----------------------------
inline float e4m3_to_float(u32 b) {
  if ((b & 127) == 127) return __builtin_nanf("");
  float v = half_to_float((b & 127) << 7) * 256;
  return b & 128 ? -v : v;
}

// ---- mma.m16n8k16: A row by row, B column by column
// ---------------------------------------------- Products are exact in float (bf16, f16: 16
// significant bits at most and 22) and added in ascending order of k to their sum, which then is
// added to C; hardware adds them in an order of its own.
template <float (*DECODE)(u32)>
inline void multiply_tile(Posts& posts) {
  float a[16][16], b[16][8];  // [row][k], [k][column]
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32* word = posts.words[lane];
    for (u32 i = 0; i < 4; ++i) {
      u32 row = lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
      a[row][k] = DECODE(word[i] & 0xffff), a[row][k + 1] = DECODE(word[i] >> 16);
    }
    for (u32 i = 0; i < 2; ++i) {
      u32 column = lane / 4, k = lane % 4 * 2 + i * 8;
      b[k][column] = DECODE(word[4 + i] & 0xffff), b[k + 1][column] = DECODE(word[4 + i] >> 16);
    }
  }
  for (u32 row = 0; row < 16; ++row) {
    float sum[8] = {};
    for (u32 k = 0; k < 16; ++k) {
      for (u32 column = 0; column < 8; ++column) sum[column] += a[row][k] * b[k][column];
    }
    for (u32 column = 0; column < 8; ++column) {
      posts.product[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2] = sum[column];
    }
  }
}

template <float (*DECODE)(u32)>
inline void mma(float (&c)[4], const Vec4& a, u32 b0, u32 b1) {
  u32 mine[6] = {a.x, a.y, a.z, a.w, b0, b1};
  const Posts& posts = meet_warp(MATRIX, mine, 6, multiply_tile<DECODE>);
  for (u32 i = 0; i < 4; ++i) c[i] += posts.product[self().thread % 32][i];
}

}  // namespace emulator
