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

// What a kernel rounds to 16 bits, or that with an error (Schedule.noise): the same for the same
// number, whichever block rounds it and when.
inline float disturbed(float v) {
  const Schedule& schedule = *machine->schedule;
  if (schedule.noise == 0) return v;
  u32 hash = (bits_of(v) ^ schedule.noise_seed * 0x9e3779b1u) * 0x7feb352du;
  hash = (hash ^ hash >> 15) * 0x846ca68bu;
  return hash >> 31 ? v + v * schedule.noise : v - v * schedule.noise;
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

// ---- e4m3: four exponent bits, three of mantissa, no infinity, one NaN --------------------------
inline float e4m3_to_float(u32 b) {
  if ((b & 127) == 127) return __builtin_nanf("");
  float v = half_to_float((b & 127) << 7) * 256;
  return b & 128 ? -v : v;
}

// ---- mma.m16n8k16: A row by row, B column by column --------------------------------------------
// What a warp's last lane makes of all lanes' words.
void multiply_bf16(Posts& posts);
void multiply_f16(Posts& posts);

}  // namespace emulator
