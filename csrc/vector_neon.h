// Four floats: Advanced SIMD of 64-bit Arm, baseline ARMv8.0, so any such machine runs it.
#pragma once

#include <arm_neon.h>

#include "half.h"

namespace monolane::neon {

using Floats = float32x4_t;
using Ints = int32x4_t;
using Bytes = int8x16_t;
constexpr int kElements = 4;
constexpr int kRegisters = 32;

static inline Floats zero() { return vdupq_n_f32(0.0f); }
static inline Floats splat(float x) { return vdupq_n_f32(x); }
static inline Floats load(const float* p) { return vld1q_f32(p); }
static inline Floats load(const Bf16* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
}
static inline Floats load(const F16* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
}
static inline void store(float* p, Floats x) { vst1q_f32(p, x); }

static inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
static inline Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
static inline Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
static inline Floats div(Floats a, Floats b) { return vdivq_f32(a, b); }
static inline Floats max(Floats a, Floats b) { return vmaxq_f32(a, b); }
static inline Floats min(Floats a, Floats b) { return vminq_f32(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }

// 2^n for integral n in [-126, 127].
static inline Floats pow2(Floats n) {
  const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
  return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
}

static inline float sum(Floats a) {
  const float32x2_t x = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(x, 0) + vget_lane_f32(x, 1);
}
static inline float max_element(Floats a) { return vmaxvq_f32(a); }
static inline void sum4(Floats a, Floats b, Floats c, Floats d, float* out) {
  out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d);
}

// Integer dots: a vector holds 16 columns of one group, low or high half.
struct Codes {
  Bytes low, high;
};
static inline Bytes load_bytes(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }
static inline Ints load_ints(const int32_t* p) { return vld1q_s32(p); }
static inline Codes load_codes(const Int8* p) { return {load_bytes(p), load_bytes(p + 16)}; }
static inline Codes load_nibbles(const void* p) {
  const uint8x16_t packed = vld1q_u8(static_cast<const uint8_t*>(p));
  return {vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15))),
          vreinterpretq_s8_u8(vshrq_n_u8(packed, 4))};
}
static inline Codes load_codes(const Int4* p) {
  const Codes biased = load_nibbles(p);
  return {vsubq_s8(biased.low, vdupq_n_s8(8)), vsubq_s8(biased.high, vdupq_n_s8(8))};
}
// The high bits of planes.h, shifted to their places; what comes in from other bytes is masked.
static inline int8x16_t join(int8x16_t low, uint32x4_t high, int8_t mask) {
  return vorrq_s8(low, vandq_s8(vreinterpretq_s8_u32(high), vdupq_n_s8(mask)));
}
static inline Codes add_fifth_bits(Codes codes, const void* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  const int32_t left[4] = {4, 3, 2, 1}, right[4] = {0, -1, -2, -3};
  const uint32x4_t bits = vdupq_n_u32(word);
  return {join(codes.low, vshlq_u32(bits, vld1q_s32(left)), 0x10),
          join(codes.high, vshlq_u32(bits, vld1q_s32(right)), 0x10)};
}
static inline Codes add_upper_bits(Codes codes, const void* p) {
  uint32_t words[2];
  std::memcpy(words, p, sizeof words);
  const int32_t left[4] = {4, 2, 4, 2}, right[4] = {0, -2, 0, -2};
  const uint32x4_t bits = vcombine_u32(vdup_n_u32(words[0]), vdup_n_u32(words[1]));
  return {join(codes.low, vshlq_u32(bits, vld1q_s32(left)), 0x30),
          join(codes.high, vshlq_u32(bits, vld1q_s32(right)), 0x30)};
}
static inline Floats spread(const uint16_t* scales) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(scales[0])));
}
// Two numbers of a group, each in all elements.
struct Twos {
  Floats first, second;
};
static inline Twos spread_halves(const void* twos) {
  uint16_t halves[2];
  std::memcpy(halves, twos, sizeof halves);
  return {splat(f16_to_float(halves[0])), splat(f16_to_float(halves[1]))};
}
// Unsigned bytes, times the float16 of the first and that of the second.
static inline Twos spread_bytes(const uint8_t* twos, const void* super) {
  uint16_t halves[2];
  std::memcpy(halves, super, sizeof halves);
  return {splat(f16_to_float(halves[0]) * static_cast<float>(twos[0])),
          splat(f16_to_float(halves[1]) * static_cast<float>(twos[1]))};
}
// Signed bytes, times one float16.
static inline Twos spread_bytes(const int8_t* twos, const void* super) {
  uint16_t half;
  std::memcpy(&half, super, sizeof half);
  const float scale = f16_to_float(half);
  return {splat(scale * static_cast<float>(twos[0])), splat(scale * static_cast<float>(twos[1]))};
}
static inline Ints none() { return vdupq_n_s32(0); }
static inline Bytes every(int8_t byte) { return vdupq_n_s8(byte); }
static inline Ints add(Ints a, Ints b) { return vaddq_s32(a, b); }
static inline Ints sub(Ints a, Ints b) { return vsubq_s32(a, b); }
template <int kBits>
static inline Ints doubled(Ints x) {
  return vshlq_n_s32(x, kBits);
}
// Signed codes need no correction for a bias.
template <class W>
static inline Ints start(Ints) {
  return vdupq_n_s32(0);
}
template <class W>
static inline Ints dot(Ints acc, Bytes w, Bytes x) {
  // |w * x| <= 128 * 127, so two products fit in 16 bits.
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
  return vpadalq_s16(acc, vmlal_high_s8(low, w, x));
}
static inline Floats to_float(Ints x) { return vcvtq_f32_s32(x); }

static inline void prefetch(const void* p) { __builtin_prefetch(p); }
static inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace monolane::neon
