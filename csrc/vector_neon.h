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
static inline Codes load_codes(const Int4* p) {
  const uint8x16_t packed = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
  const int8x16_t bias = vdupq_n_s8(8);
  return {vsubq_s8(vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15))), bias),
          vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(packed, 4)), bias)};
}
static inline Floats spread(const uint16_t* scales) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(scales[0])));
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
