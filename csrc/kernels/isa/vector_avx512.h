// Sixteen floats: AVX-512 F, BW, DQ, VL and VNNI (Cascade Lake, Zen 4 and later; the few older
// machines run the AVX2 set, which spares us a second integer path). Compiled twice: the set with
// BF16 adds the pairwise dot of bfloat16.
#pragma once

#include <immintrin.h>

#include "kernels/isa/half.h"

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
static inline Floats splat(F16 x) { return _mm512_cvtph_ps(_mm256_set1_epi16(x.bits)); }
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

// Integer dots: each element is a row, its four bytes are four columns (panels.h).
constexpr bool kSignedBytes = false;  // vpdpbusd takes unsigned codes of 8 bits as they are stored
#define MONOLANE_BRINGS               // many tokens share what is brought out of memory (brought.h)
static inline Bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
static inline Bytes low_nibbles(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
static inline Bytes high_nibbles(Bytes x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
// codes | (high << kShift & kMask); a negative shift is to the right.
template <int kShift, int kMask>
static inline Bytes join(Bytes codes, Bytes high) {
  const Bytes placed =
      kShift >= 0 ? _mm512_slli_epi32(high, kShift) : _mm512_srli_epi32(high, -kShift);
  return _mm512_ternarylogic_epi32(codes, placed, _mm512_set1_epi8(kMask), 0xF8);
}
// The number that each nibble names in a table of 16.
static inline Bytes look_up(Bytes nibbles, const uint8_t* table) {
  const __m128i sixteen = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), nibbles);
}
// 2^(e - 128) of each byte e.
static inline Floats load_exponents(const uint8_t* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i power = _mm512_sub_epi32(e, _mm512_set1_epi32(128));
  return _mm512_scalef_ps(_mm512_set1_ps(1.0f), _mm512_cvtepi32_ps(power));
}
// 2^-8 of what each byte means as E4M3: its bits are those of a float16 with a wider exponent.
static inline Floats load_bytes_as_halves(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
}
static inline Floats load_bytes_as_floats(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
static inline Floats load_bytes_as_floats(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
template <bool kHigh>
static inline Floats load_nibbles_as_floats(const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtepi32_ps(kHigh ? _mm512_srli_epi32(bytes, 4)
                                  : _mm512_and_si512(bytes, _mm512_set1_epi32(15)));
}
static inline Ints splat(int32_t x) { return _mm512_set1_epi32(x); }
template <bool kBytes>
static inline Ints dot(Ints acc, Bytes codes, const int8_t* four) {
  int32_t x;
  std::memcpy(&x, four, sizeof x);
  return _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x));
}
// The sum of a fine group: of its codes, and of those of what they leave over (panels.h).
static inline Ints join_sums(Ints sum, Ints rest) {
  return _mm512_add_epi32(_mm512_slli_epi32(sum, 7), rest);
}
static inline Floats to_float(Ints x) { return _mm512_cvtepi32_ps(x); }

// A group of 32 activations as int8 codes (pack.h).
#define MONOLANE_GROUPS
// The bits of the largest |x|, which of floats >= 0 order like the floats.
static inline uint32_t largest_bits(const float* x) {
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  const __m512i a = _mm512_andnot_si512(sign, _mm512_loadu_si512(x));
  const __m512i b = _mm512_andnot_si512(sign, _mm512_loadu_si512(x + 16));
  return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}
// Codes are x * factor to the nearest, ties to even; a NaN's is 0. Sums: of columns 0..15, 16..31.
static inline void put_codes(const float* x, float factor, int8_t* codes, int32_t (&sums)[2]) {
  const Floats f = splat(factor);
  const __m128i a = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(mul(load(x), f)));
  const __m128i b = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(mul(load(x + 16), f)));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), both);
  const __m256i ones = _mm256_set1_epi8(1);
  const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, both);
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

}  // namespace monolane::MONOLANE_ISA
