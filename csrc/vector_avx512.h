// Sixteen floats: AVX-512 F, BW, DQ, VL and VNNI (Cascade Lake, Zen 4 and later; the few older
// machines run the AVX2 set, which spares us a second integer path). Compiled twice: the set with
// BF16 adds the pairwise dot of bfloat16.
#pragma once

#include <immintrin.h>

#include "half.h"

namespace monolane::MONOLANE_ISA {

using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;
constexpr int kElements = 16;
constexpr int kRegisters = 32;

static inline Floats zero() { return _mm512_setzero_ps(); }
static inline Floats splat(float x) { return _mm512_set1_ps(x); }
static inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
static inline Floats load(const Bf16* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
static inline Floats load(const F16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }

static inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
static inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
static inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }  // b if either is NaN
static inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

// 2^n for integral n in [-126, 127].
static inline Floats pow2(Floats n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

// Lane i with i + 8, then i + 4, i + 2, i + 1: the tree that `sum4` also follows.
static inline float sum(Floats a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static inline float max_element(Floats a) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// Four sums at once cost 9 shuffles and 5 additions, where four single ones cost 16 and 16.
static inline void sum4(Floats a, Floats b, Floats c, Floats d, float* out) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4E));
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xB1));
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, x)));
}

#ifdef __AVX512BF16__
// The hardware's own dot of bfloat16 pairs: 64 flops an instruction, subnormals taken as zero.
using Pairs = __m512i;
constexpr int kPairs = 32;  // bfloat16 values of one vector
static inline Pairs load_pairs(const Bf16* p) { return _mm512_loadu_si512(p); }
static inline Floats dot_pairs(Pairs w, Pairs x, Floats acc) {
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}
#endif

// Integer dots: a vector holds 16 columns, low or high half, of each of four groups.
struct Codes {
  Bytes low, high;
};
static inline Bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
static inline Ints load_ints(const int32_t* p) { return _mm512_loadu_si512(p); }
// vpdpbusd takes unsigned times signed: int8 codes are biased by 128 here, int4 ones by 8 as
// stored.
static inline Codes load_codes(const Int8* p) {
  const __m512i first = load_bytes(p);
  const __m512i second = load_bytes(p + 64);
  const __m512i bias = _mm512_set1_epi8(-128);
  return {_mm512_xor_si512(_mm512_shuffle_i64x2(first, second, 0x88), bias),
          _mm512_xor_si512(_mm512_shuffle_i64x2(first, second, 0xDD), bias)};
}
static inline Codes load_nibbles(const void* p) {
  const __m512i packed = load_bytes(p);
  const __m512i nibble = _mm512_set1_epi8(15);
  return {_mm512_and_si512(packed, nibble), _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble)};
}
static inline Codes load_codes(const Int4* p) { return load_nibbles(p); }
// The high bits of planes.h, shifted to their places; what comes in from other bytes is masked.
static inline __m512i join(__m512i low, __m512i high, int mask) {  // low | (high & mask)
  return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(static_cast<char>(mask)), 0xF8);
}
static inline Codes add_fifth_bits(Codes codes, const void* p) {
  const __m128i words = _mm_loadu_si128(static_cast<const __m128i*>(p));
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i bits = _mm512_permutexvar_epi32(lanes, _mm512_castsi128_si512(words));
  const __m512i left = _mm512_broadcast_i32x4(_mm_setr_epi32(4, 3, 2, 1));
  const __m512i right = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 1, 2, 3));
  return {join(codes.low, _mm512_sllv_epi32(bits, left), 0x10),
          join(codes.high, _mm512_srlv_epi32(bits, right), 0x10)};
}
static inline Codes add_upper_bits(Codes codes, const void* p) {
  const __m256i words = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i bits = _mm512_permutexvar_epi32(lanes, _mm512_castsi256_si512(words));
  const __m512i left = _mm512_broadcast_i32x4(_mm_setr_epi32(4, 2, 4, 2));
  const __m512i right = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 2, 0, 2));
  return {join(codes.low, _mm512_sllv_epi32(bits, left), 0x30),
          join(codes.high, _mm512_srlv_epi32(bits, right), 0x30)};
}
static inline Floats spread(const uint16_t* scales) {
  const __m128 four = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
  const __m512i groups = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(groups, _mm512_castps128_ps512(four));
}
// Two numbers of each group, each in the group's elements.
struct Twos {
  Floats first, second;
};
static inline Twos spread(__m256 twos) {
  const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
  const __m512i second = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
  const __m512 all = _mm512_castps256_ps512(twos);
  return {_mm512_permutexvar_ps(first, all), _mm512_permutexvar_ps(second, all)};
}
static inline Twos spread_halves(const void* twos) {
  return spread(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(twos))));
}
// Unsigned bytes, times the float16 of the firsts and that of the seconds.
static inline Twos spread_bytes(const uint8_t* twos, const void* super) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadu_si64(twos));
  int32_t both;
  std::memcpy(&both, super, sizeof both);
  return spread(_mm256_mul_ps(_mm256_cvtepi32_ps(bytes), _mm256_cvtph_ps(_mm_set1_epi32(both))));
}
// Signed bytes, times one float16.
static inline Twos spread_bytes(const int8_t* twos, const void* super) {
  const __m256i bytes = _mm256_cvtepi8_epi32(_mm_loadu_si64(twos));
  int16_t one;
  std::memcpy(&one, super, sizeof one);
  return spread(_mm256_mul_ps(_mm256_cvtepi32_ps(bytes), _mm256_cvtph_ps(_mm_set1_epi16(one))));
}
static inline Ints none() { return _mm512_setzero_si512(); }
static inline Ints every(char byte) { return _mm512_set1_epi8(byte); }
static inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline Ints sub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
template <int kBits>
static inline Ints doubled(Ints x) {
  return _mm512_slli_epi32(x, kBits);
}
template <class W>
static inline Ints start(Ints minus_8_sums);
template <>
inline Ints start<Int8>(Ints minus_8_sums) {
  return _mm512_slli_epi32(minus_8_sums, 4);
}
template <>
inline Ints start<Int4>(Ints minus_8_sums) {
  return minus_8_sums;
}
template <class W>
static inline Ints dot(Ints acc, Bytes w, Bytes x) {
  return _mm512_dpbusd_epi32(acc, w, x);
}
static inline Floats to_float(Ints x) { return _mm512_cvtepi32_ps(x); }

static inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
static inline void prefetch_far(const void* p) {  // into the second level
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace monolane::MONOLANE_ISA
