// Eight floats: AVX2 with FMA and F16C (Haswell, Zen and later).
#pragma once

#include <immintrin.h>

#include "kernels/isa/half.h"

namespace monolane::avx2 {

using Floats = __m256;
using Ints = __m256i;
using Bytes = __m256i;
constexpr int kElements = 8;
constexpr int kRegisters = 16;

static inline Floats zero() { return _mm256_setzero_ps(); }
static inline Floats splat(float x) { return _mm256_set1_ps(x); }
static inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
static inline Floats load(const Bf16* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
static inline Floats load(const F16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Floats splat(F16 x) { return _mm256_cvtph_ps(_mm_set1_epi16(x.bits)); }
static inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }

static inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
static inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
static inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
static inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
static inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }  // b if either is NaN
static inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

// 2^n for integral n in [-126, 127].
static inline Floats pow2(Floats n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

// Lane i with i + 4, then i + 2, then i + 1: the tree that `sum4` also follows.
static inline float sum(Floats a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static inline float max_element(Floats a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
static inline void sum4(Floats a, Floats b, Floats c, Floats d, float* out) {
  const __m256 ab =
      _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const __m256 cd =
      _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  __m256 x = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  x = _mm256_add_ps(x, _mm256_movehdup_ps(x));  // a . c . | b . d .
  x = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 4, 2, 6, 0, 4, 2, 6));
  _mm_storeu_ps(out, _mm256_castps256_ps128(x));
}

// Integer dots: each element is a row, its four bytes are four columns (panels.h).
constexpr bool kSignedBytes = false;  // codes of 8 bits are multiplied unsigned
static inline Bytes load_bytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static inline Bytes low_nibbles(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
static inline Bytes high_nibbles(Bytes x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
// codes | (high << kShift & kMask); a negative shift is to the right.
template <int kShift, int kMask>
static inline Bytes join(Bytes codes, Bytes high) {
  const Bytes placed =
      kShift >= 0 ? _mm256_slli_epi32(high, kShift) : _mm256_srli_epi32(high, -kShift);
  return _mm256_or_si256(codes, _mm256_and_si256(placed, _mm256_set1_epi8(kMask)));
}
// The number that each nibble names in a table of 16.
static inline Bytes look_up(Bytes nibbles, const uint8_t* table) {
  const __m128i sixteen = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), nibbles);
}
// 2^(e - 128) of each byte e; of 0 and 1 it is subnormal, 2^21 and 2^22 times the least.
static inline Floats load_exponents(const uint8_t* p) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadu_si64(p)), one = _mm256_set1_epi32(1);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
  const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e);
  const __m256i is_normal = _mm256_cmpgt_epi32(e, one);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, is_normal));
}
// 2^-8 of what each byte means as E4M3: its bits are those of a float16 with a wider exponent.
static inline Floats load_bytes_as_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadu_si64(p)), 7));
}
static inline Floats load_bytes_as_floats(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadu_si64(p)));
}
static inline Floats load_bytes_as_floats(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(p)));
}
template <bool kHigh>
static inline Floats load_nibbles_as_floats(const uint8_t* p) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadu_si64(p));
  return _mm256_cvtepi32_ps(kHigh ? _mm256_srli_epi32(bytes, 4)
                                  : _mm256_and_si256(bytes, _mm256_set1_epi32(15)));
}
static inline Ints splat(int32_t x) { return _mm256_set1_epi32(x); }
// vpmaddubsw takes unsigned times signed and saturates at 16 bits. Codes are at most 63, of those
// of 8 bits each nibble by itself: 2 * 63 * 127; so pairs of several can be added in 16 bits before
// they are widened (PanelDot::kPairSums).
#define MONOLANE_PAIR_SUMS
using Pair = __m256i;  // of 16-bit sums, of columns 0 and 1, 2 and 3 of each row
// The same four bytes in every element.
static inline Bytes splat_four(const int8_t* four) {
  int32_t word;
  std::memcpy(&word, four, sizeof word);
  return _mm256_set1_epi32(word);
}
static inline Pair multiply_pairs(Bytes codes, Bytes x) { return _mm256_maddubs_epi16(codes, x); }
// Sums are fixed where they are made: gcc would make trees of several, and spill what waits.
static inline Pair add_pairs(Pair a, Pair b) {
  Pair sum = _mm256_add_epi16(a, b);
  asm("" : "+x"(sum));
  return sum;
}
template <int kTimes>
static inline Ints widen_pairs(Pair pairs) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(kTimes));
}
static inline Ints add_sums(Ints a, Ints b) {
  Ints sum = _mm256_add_epi32(a, b);
  asm("" : "+x"(sum));
  return sum;
}
// The sum of a fine group: of its codes, and of those of what they leave over (panels.h).
static inline Ints join_sums(Ints sum, Ints rest) {
  return _mm256_add_epi32(_mm256_slli_epi32(sum, 7), rest);
}
static inline Floats to_float(Ints x) { return _mm256_cvtepi32_ps(x); }

// A group of 32 activations as int8 codes (pack.h).
#define MONOLANE_GROUPS
// The bits of the largest |x|, which of floats >= 0 order like the floats.
static inline uint32_t largest_bits(const float* x) {
  const __m256i size = _mm256_set1_epi32(INT32_MAX);
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) {
    const auto* eight = reinterpret_cast<const __m256i*>(x + i);
    most = _mm256_max_epu32(most, _mm256_and_si256(size, _mm256_loadu_si256(eight)));
  }
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}
// Codes are x * factor to the nearest, ties to even; a NaN's is 0. Sums: of columns 0..15, 16..31.
static inline void put_codes(const float* x, float factor, int8_t* codes, int32_t (&sums)[2]) {
  const Floats f = splat(factor);
  // Packing saturates, and keeps 0 to 255; the low byte of a NaN's INT32_MIN is 0.
  const __m256i low = _mm256_set1_epi32(0xFF);
  const auto eight = [&](int i) {
    return _mm256_and_si256(low, _mm256_cvtps_epi32(mul(load(x + i), f)));
  };
  const __m256i ab = _mm256_packus_epi32(eight(0), eight(8));
  const __m256i cd = _mm256_packus_epi32(eight(16), eight(24));
  // Four columns each of a, b, c and d, and then the other four.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i both = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), both);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), both);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m256i eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4E));
  const __m256i all = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0xB1));
  sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(all));
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(all, 1));
}

MONOLANE_INLINE static inline void prefetch_near(const void* p) {  // into the first level
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
MONOLANE_INLINE static inline void prefetch_far(const void* p) {  // into the second level
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace monolane::avx2
