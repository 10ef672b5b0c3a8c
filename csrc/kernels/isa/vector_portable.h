// Four floats on any machine, by the compilers' generic vectors: the set that always works and that
// the tests hold against the others. Multiply-add is two roundings here: a fused one without the
// instruction is a library call per element. MONOLANE_FUSED makes it one, for csrc/tests.
#pragma once

#include "kernels/isa/half.h"

namespace monolane::MONOLANE_ISA {

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef int8_t Bytes __attribute__((vector_size(16)));
constexpr int kElements = 4;
constexpr int kRegisters = 16;

static inline Floats zero() { return Floats{}; }
static inline Floats splat(float x) { return Floats{x, x, x, x}; }
static inline Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
static inline Words load_halves(const void* p) {
  typedef uint16_t Halves __attribute__((vector_size(8)));
  Halves x;
  std::memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, Words);
}
static inline Floats as_floats(Words bits) {
  Floats x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
static inline Floats load(const Bf16* p) { return as_floats(load_halves(p) << 16); }
// As f16_to_float, four at a time.
static inline Floats load(const F16* p) {
  const Words halves = load_halves(p);
  const Words magnitude = (halves & 0x7FFFu) << 13;
  const Words infinite = (magnitude >= 0x0F800000u) & 0x7F800000u;
  const Floats scaled = as_floats(magnitude) * 0x1p112f;
  Words bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  return as_floats(bits | infinite | (halves & 0x8000u) << 16);
}
static inline Floats splat(F16 x) { return splat(f16_to_float(x.bits)); }
static inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }

static inline Floats add(Floats a, Floats b) { return a + b; }
static inline Floats sub(Floats a, Floats b) { return a - b; }
static inline Floats mul(Floats a, Floats b) { return a * b; }
static inline Floats div(Floats a, Floats b) { return a / b; }
static inline Floats max(Floats a, Floats b) { return a > b ? a : b; }  // b if either is NaN
static inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
static inline Floats fma(Floats a, Floats b, Floats c) {
#ifdef MONOLANE_FUSED
  for (int i = 0; i < kElements; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

// 2^n for integral n in [-126, 127].
static inline Floats pow2(Floats n) {
  const Ints bits = (__builtin_convertvector(n, Ints) + 127) << 23;
  Floats x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

static inline float sum(Floats a) { return (a[0] + a[2]) + (a[1] + a[3]); }
static inline float max_element(Floats a) {
  const float even = a[0] > a[2] ? a[0] : a[2];
  const float odd = a[1] > a[3] ? a[1] : a[3];
  return even > odd ? even : odd;
}
static inline void sum4(Floats a, Floats b, Floats c, Floats d, float* out) {
  out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d);
}

// Integer dots: each element is a row, its four bytes are four columns (panels.h).
constexpr bool kSignedBytes = true;  // `dot` takes the bias of codes of 8 bits away
static inline Bytes load_bytes(const void* p) {
  Bytes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
static inline Bytes low_nibbles(Bytes x) { return x & static_cast<int8_t>(15); }
static inline Bytes high_nibbles(Bytes x) { return x >> 4 & static_cast<int8_t>(15); }
// codes | (high << kShift & kMask); a negative shift is to the right.
template <int kShift, int kMask>
static inline Bytes join(Bytes codes, Bytes high) {
  Words bits;
  std::memcpy(&bits, &high, sizeof bits);
  const Words placed = kShift >= 0 ? bits << (kShift & 31) : bits >> (-kShift & 31);
  std::memcpy(&high, &placed, sizeof high);
  return codes | (high & static_cast<int8_t>(kMask));
}
// The number that each nibble names in a table of 16.
static inline Bytes look_up(Bytes nibbles, const uint8_t* table) {
  for (int i = 0; i < 16; ++i) nibbles[i] = static_cast<int8_t>(table[nibbles[i]]);
  return nibbles;
}
// 2^(e - 128) of each byte e.
static inline Floats load_exponents(const uint8_t* p) {
  return Floats{half_power(p[0]), half_power(p[1]), half_power(p[2]), half_power(p[3])};
}
// 2^-8 of what each byte means as E4M3: its bits are those of a float16 with a wider exponent.
static inline Floats load_bytes_as_halves(const uint8_t* p) {
  Floats found;
  for (int i = 0; i < kElements; ++i) found[i] = f16_to_float(static_cast<uint16_t>(p[i] << 7));
  return found;
}
template <class Byte>
static inline Floats load_bytes_as_floats(const Byte* p) {
  return Floats{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
                static_cast<float>(p[3])};
}
template <bool kHigh>
static inline Floats load_nibbles_as_floats(const uint8_t* p) {
  const auto nibble = [&](int i) { return static_cast<float>(kHigh ? p[i] >> 4 : p[i] & 15); };
  return Floats{nibble(0), nibble(1), nibble(2), nibble(3)};
}
static inline Ints splat(int32_t x) { return Ints{x, x, x, x}; }
template <bool kBytes>
static inline Ints dot(Ints acc, Bytes codes, const int8_t* four) {
  if constexpr (kBytes) codes ^= static_cast<int8_t>(-128);
  for (int c = 0; c < 4; ++c) {
    const Ints column{codes[c], codes[4 + c], codes[8 + c], codes[12 + c]};
    acc += column * static_cast<int32_t>(four[c]);
  }
  return acc;
}
// The sum of a fine group: of its codes, and of those of what they leave over (panels.h).
static inline Ints join_sums(Ints sum, Ints rest) { return sum * 128 + rest; }
static inline Floats to_float(Ints x) { return __builtin_convertvector(x, Floats); }

MONOLANE_INLINE static inline void prefetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }
MONOLANE_INLINE static inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace monolane::MONOLANE_ISA
