// The one vector type that the kernels are written in, chosen by MONOLANE_ISA, plus what every set
// derives the same way: tails, rounding, exp. A library such as Highway offers more than we need
// and would not promise us the order of its horizontal sums, on which our bits rest.
#pragma once

#include <cstdint>
#include <cstring>

namespace monolane {

// How stored numbers are told apart in overloads; each is as large as its storage.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

}  // namespace monolane

// Prefetches need it, too: gcc 12 drops calls of a function that does nothing else, as free of
// effects, unless it is inlined first. Tests for whom speed proves nothing define it as nothing.
#ifndef MONOLANE_INLINE
#define MONOLANE_INLINE __attribute__((always_inline))
#endif

#if defined(__AVX512F__)
#include "kernels/isa/vector_avx512.h"
#elif defined(__AVX2__)
#include "kernels/isa/vector_avx2.h"
#elif defined(MONOLANE_NEON)
#include "kernels/isa/vector_neon.h"
#else
#include "kernels/isa/vector_portable.h"
#endif

namespace monolane::MONOLANE_ISA {

// The first n < N elements at p in a padded copy: how every set reads a tail, so that elements
// beyond the end hold zero and add nothing.
template <class W, int N>
struct Padded {
  alignas(64) W values[N];
  Padded(const W* p, int64_t n) {
    std::memset(static_cast<void*>(values), 0, sizeof values);
    std::memcpy(static_cast<void*>(values), p, static_cast<size_t>(n) * sizeof(W));
  }
};

template <class W>
static inline Floats load_first(const W* p, int64_t n) {
  return load(Padded<W, kElements>(p, n).values);
}

static inline void store_first(float* p, Floats x, int64_t n) {
  float all[kElements];
  store(all, x);
  std::memcpy(p, all, static_cast<size_t>(n) * sizeof(float));
}

// To the nearest integer, ties to even, for |x| < 2^22: the sum has no room for a fraction.
static inline Floats round_even(Floats x) {
  const Floats magic = splat(0x1.8p23f);
  return sub(add(x, magic), magic);
}

// e^x within 2 ulp (tests/cpu/test_attend.py), 0 below -104, inf
// above 89, NaN for NaN. x = n ln 2 + r, |r| <= 0.35; e^r by its series up to r^7, whose remainder
// r^8 / 8! is under 2^-27; then 2^n in two factors, since n reaches -150.
static inline Floats exp(Floats x) {
  x = min(splat(89.0f), max(splat(-104.0f), x));
  const Floats n = round_even(mul(x, splat(0x1.715476p0f)));
  Floats r = fma(n, splat(-0x1.63p-1f), x);  // ln 2 to 10 bits: n times it is exact
  r = fma(n, splat(0x1.bd0106p-13f), r);     // the rest of ln 2
  constexpr float kSeries[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Floats p = splat(1.0f / 5040);
  for (const float c : kSeries) p = fma(p, r, splat(c));
  const Floats half = round_even(mul(n, splat(0.5f)));
  return mul(mul(p, pow2(half)), pow2(sub(n, half)));
}

}  // namespace monolane::MONOLANE_ISA
