// Scalar conversions between float and the two 16-bit formats, for code that must run on any
// machine: quantisation, the portable set, row tails. Written out in integers because the compilers
// that we support disagree on _Float16 and none rounds bfloat16 without the hardware.
// `static`, so that a copy compiled for AVX-512 can never be the one that the linker keeps for all.
#pragma once

#include <cstdint>
#include <cstring>

namespace monolane {

static inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

static inline float bf16_to_float(uint16_t half) { return bits_float(uint32_t{half} << 16); }

// Round to nearest even; a NaN stays a (quiet) NaN. Branch-free, so that loops over it vectorise.
static inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

// Normal numbers by moving the exponent; subnormal ones by letting the float unit normalise.
static inline float f16_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = uint32_t{half & 0x7FFFu} << 13;
  const uint32_t infinite = magnitude >= 0x0F800000u ? 0x7F800000u : 0u;
  return bits_float(float_bits(bits_float(magnitude) * 0x1p112f) | infinite | sign);
}

// Round to nearest even, with subnormal results; beyond 65520 infinity.
static inline uint16_t float_to_f16(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u | ((magnitude >> 13) & 0x1FFu);
  } else if (magnitude >= 0x477FF000u) {
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {
    // Adding 0.5 puts the last bit of a subnormal half, 2^-24, at the last bit of the float.
    half = float_bits(bits_float(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    half = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

// 2^(e - 128): half of what E8M0, an exponent alone, means by e. Of 0 and 1 it is subnormal.
static inline float half_power(uint8_t e) {
  return bits_float(e < 2 ? 0x00200000u << e : (uint32_t{e} - 1) << 23);
}

}  // namespace monolane
