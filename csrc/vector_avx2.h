// Eight floats: AVX2 with FMA and F16C (Haswell, Zen and later).
#pragma once

#include <immintrin.h>

#include "half.h"

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

// Integer dots: a vector holds 16 columns, low or high half, of each of two groups.
struct Codes {
  Bytes low, high;
};
static inline Bytes load_bytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
static inline Ints load_ints(const int32_t* p) { return load_bytes(p); }
static inline Codes load_codes(const Int8* p) {
  const __m256i first = load_bytes(p);
  const __m256i second = load_bytes(p + 32);
  return {_mm256_permute2x128_si256(first, second, 0x20),
          _mm256_permute2x128_si256(first, second, 0x31)};
}
static inline Codes load_nibbles(const void* p) {
  const __m256i packed = load_bytes(p);
  const __m256i nibble = _mm256_set1_epi8(15);
  return {_mm256_and_si256(packed, nibble), _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble)};
}
static inline Codes load_codes(const Int4* p) { return load_nibbles(p); }
// The high bits of planes.h, shifted to their places; what comes in from other bytes is masked.
static inline __m256i join(__m256i low, __m256i high, char mask) {
  return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(mask)));
}
static inline Codes add_fifth_bits(Codes codes, const void* p) {
  const __m256i words = _mm256_castsi128_si256(_mm_loadu_si64(p));
  const __m256i lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m256i bits = _mm256_permutevar8x32_epi32(words, lanes);
  const __m256i left = _mm256_setr_epi32(4, 3, 2, 1, 4, 3, 2, 1);
  const __m256i right = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
  return {join(codes.low, _mm256_sllv_epi32(bits, left), 0x10),
          join(codes.high, _mm256_srlv_epi32(bits, right), 0x10)};
}
static inline Codes add_upper_bits(Codes codes, const void* p) {
  const __m128i words = _mm_loadu_si128(static_cast<const __m128i*>(p));
  const __m256i lanes = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256i bits = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(words), lanes);
  const __m256i left = _mm256_setr_epi32(4, 2, 4, 2, 4, 2, 4, 2);
  const __m256i right = _mm256_setr_epi32(0, 2, 0, 2, 0, 2, 0, 2);
  return {join(codes.low, _mm256_sllv_epi32(bits, left), 0x30),
          join(codes.high, _mm256_srlv_epi32(bits, right), 0x30)};
}
static inline Floats spread(const uint16_t* scales) {
  int32_t two;
  std::memcpy(&two, scales, sizeof two);
  const __m256 pair = _mm256_castps128_ps256(_mm_cvtph_ps(_mm_cvtsi32_si128(two)));
  return _mm256_permutevar8x32_ps(pair, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}
// Two numbers of each group, each in the group's elements.
struct Twos {
  Floats first, second;
};
static inline Twos spread(__m128 twos) {
  const __m256 all = _mm256_castps128_ps256(twos);
  return {_mm256_permutevar8x32_ps(all, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2)),
          _mm256_permutevar8x32_ps(all, _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3))};
}
static inline Twos spread_halves(const void* twos) {
  return spread(_mm_cvtph_ps(_mm_loadu_si64(twos)));
}
// Unsigned bytes, times the float16 of the firsts and that of the seconds.
static inline Twos spread_bytes(const uint8_t* twos, const void* super) {
  int32_t four, both;
  std::memcpy(&four, twos, sizeof four);
  std::memcpy(&both, super, sizeof both);
  const __m128 bytes = _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
  return spread(_mm_mul_ps(bytes, _mm_cvtph_ps(_mm_set1_epi32(both))));
}
// Signed bytes, times one float16.
static inline Twos spread_bytes(const int8_t* twos, const void* super) {
  int32_t four;
  int16_t one;
  std::memcpy(&four, twos, sizeof four);
  std::memcpy(&one, super, sizeof one);
  const __m128 bytes = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)));
  return spread(_mm_mul_ps(bytes, _mm_cvtph_ps(_mm_set1_epi16(one))));
}
static inline Ints none() { return _mm256_setzero_si256(); }
static inline Ints every(char byte) { return _mm256_set1_epi8(byte); }
static inline Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
static inline Ints sub(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
template <int kBits>
static inline Ints doubled(Ints x) {
  return _mm256_slli_epi32(x, kBits);
}
template <class W>
static inline Ints start(Ints minus_8_sums);
template <>
inline Ints start<Int8>(Ints) {
  return _mm256_setzero_si256();
}
template <>
inline Ints start<Int4>(Ints minus_8_sums) {
  return minus_8_sums;
}
// vpmaddubsw takes unsigned times signed and saturates at 16 bits. Int8: |w| times x with w's sign,
// at most 2 * 128 * 127 = 32512. Int4: the biased code, at most 2 * 15 * 127.
template <class W>
static inline Ints dot(Ints acc, Bytes w, Bytes x);
template <>
inline Ints dot<Int8>(Ints acc, Bytes w, Bytes x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
template <>
inline Ints dot<Int4>(Ints acc, Bytes w, Bytes x) {
  const __m256i pairs = _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline Floats to_float(Ints x) { return _mm256_cvtepi32_ps(x); }

static inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
static inline void prefetch_far(const void* p) {  // into the second level
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace monolane::avx2
