// Four floats: Advanced SIMD of 64-bit Arm. Compiled three times: as ARMv8.0 has it, which any such
// machine runs; with dots of four bytes (SDOT); with those of unsigned by signed bytes and products
// of matrices of bytes (USDOT, SMMLA: FEAT_I8MM). Floats are the same in all three.
#pragma once

#include <arm_neon.h>

#include "kernels/isa/half.h"

namespace monolane::MONOLANE_ISA {

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
static inline Floats splat(F16 x) { return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x.bits))); }
static inline void store(float* p, Floats x) { vst1q_f32(p, x); }

static inline Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
static inline Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
static inline Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
static inline Floats div(Floats a, Floats b) { return vdivq_f32(a, b); }
// b if either is NaN, as on the other sets; vmaxq_f32 would return the NaN, wherever it is.
static inline Floats max(Floats a, Floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline Floats min(Floats a, Floats b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
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

// Integer dots: each element is a row, its four bytes are four columns (panels.h).
#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr bool kSignedBytes = false;  // USDOT takes unsigned codes of 8 bits as they are stored
#else
constexpr bool kSignedBytes = true;  // dots take the bias of codes of 8 bits away
#endif
static inline Bytes load_bytes(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }
static inline Bytes low_nibbles(Bytes x) { return vandq_s8(x, vdupq_n_s8(15)); }
static inline Bytes high_nibbles(Bytes x) {
  return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4));
}
// codes | (high << kShift & kMask); a negative shift is to the right.
template <int kShift, int kMask>
static inline Bytes join(Bytes codes, Bytes high) {
  const uint32x4_t placed = vshlq_u32(vreinterpretq_u32_s8(high), vdupq_n_s32(kShift));
  return vorrq_s8(codes, vandq_s8(vreinterpretq_s8_u32(placed), vdupq_n_s8(kMask)));
}
// The number that each nibble names in a table of 16.
static inline Bytes look_up(Bytes nibbles, const uint8_t* table) {
  return vreinterpretq_s8_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s8(nibbles)));
}
// 2^(e - 128) of each byte e; of 0 and 1 it is subnormal, 2^21 and 2^22 times the least.
static inline Floats load_exponents(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  const uint32x4_t e = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
  const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
  const uint32x4_t small = vshlq_u32(vdupq_n_u32(1u << 21), vreinterpretq_s32_u32(e));
  return vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(e, vdupq_n_u32(1)), normal, small));
}
// 2^-8 of what each byte means as E4M3: its bits are those of a float16 with a wider exponent.
static inline Floats load_bytes_as_halves(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  const uint16x8_t bits = vshll_n_u8(vcreate_u8(four), 7);
  return vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(bits)));
}
static inline Floats load_bytes_as_floats(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  const uint16x8_t wide = vmovl_u8(vcreate_u8(four));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}
static inline Floats load_bytes_as_floats(const int8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  const int16x8_t wide = vmovl_s8(vcreate_s8(four));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
template <bool kHigh>
static inline Floats load_nibbles_as_floats(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  const uint8x8_t bytes = vcreate_u8(four);
  const uint8x8_t codes = kHigh ? vshr_n_u8(bytes, 4) : vand_u8(bytes, vdup_n_u8(15));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(codes))));
}
static inline Ints splat(int32_t x) { return vdupq_n_s32(x); }
#ifdef __ARM_FEATURE_DOTPROD
// Of columns 4 kQuad .. 4 kQuad + 3 of a token's group at x. A dot takes its four columns out of a
// vector of 16, so a group is loaded twice and not eight times.
#define MONOLANE_LANE_DOTS
template <bool kBytes, int kQuad>
static inline Ints dot_lane(Ints acc, Bytes codes, const int8_t* x) {
  const int8x16_t columns = vld1q_s8(x + kQuad / 4 * 16);
#ifdef __ARM_FEATURE_MATMUL_INT8
  return vusdotq_laneq_s32(acc, vreinterpretq_u8_s8(codes), columns, kQuad % 4);
#else
  if constexpr (kBytes) codes = veorq_s8(codes, vdupq_n_s8(-128));
  return vdotq_laneq_s32(acc, codes, columns, kQuad % 4);
#endif
}
#else
template <bool kBytes>
static inline Ints dot(Ints acc, Bytes codes, const int8_t* four) {
  int32_t word;
  std::memcpy(&word, four, sizeof word);
  const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(word));
  if constexpr (kBytes) codes = veorq_s8(codes, vdupq_n_s8(-128));
  // |w * x| <= 128 * 127, so two products fit in 16 bits.
  const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
  return vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(codes, x)));
}
#endif
// The sum of a fine group: of its codes, and of those of what they leave over (panels.h).
static inline Ints join_sums(Ints sum, Ints rest) { return vaddq_s32(vshlq_n_s32(sum, 7), rest); }
static inline Floats to_float(Ints x) { return vcvtq_f32_s32(x); }

#ifdef __ARM_FEATURE_MATMUL_INT8
// Products of matrices (matrix_dot.h): two rows of eight columns by two tokens' eight columns.
// Sums are of row 0 with either token, then of row 1.
static inline Ints multiply_matrices(Ints acc, Bytes rows, Bytes tokens) {
  return vmmlaq_s32(acc, rows, tokens);
}
static inline Ints multiply_add(Ints acc, Ints a, Ints b) { return vmlaq_s32(acc, a, b); }
// Eight columns of rows 0 and 1, or of 2 and 3, of two vectors of four columns of four rows.
template <bool kLast>
static inline Bytes join_columns(Bytes four, Bytes next) {
  const Ints a = vreinterpretq_s32_s8(four), b = vreinterpretq_s32_s8(next);
  return vreinterpretq_s8_s32(kLast ? vzip2q_s32(a, b) : vzip1q_s32(a, b));
}
// Eight columns of two tokens, of 16 of each: the first ones or the last.
template <bool kLast>
static inline Bytes join_tokens(Bytes first, Bytes second) {
  const int64x2_t a = vreinterpretq_s64_s8(first), b = vreinterpretq_s64_s8(second);
  return vreinterpretq_s8_s64(kLast ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
}
// The elements of both in turn: the first two of each, or the last two.
template <bool kLast>
static inline Floats interleave(Floats a, Floats b) {
  return kLast ? vzip2q_f32(a, b) : vzip1q_f32(a, b);
}
static inline Floats splat(Floats x) { return x; }  // what has a number for each element already
// Every other element of both, from the first on or from the second.
template <bool kOdd>
static inline Floats every_other(Floats a, Floats b) {
  return kOdd ? vuzp2q_f32(a, b) : vuzp1q_f32(a, b);
}
#endif

MONOLANE_INLINE static inline void prefetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }
MONOLANE_INLINE static inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace monolane::MONOLANE_ISA
