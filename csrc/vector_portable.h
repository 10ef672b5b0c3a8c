// Four floats on any machine, by the compilers' generic vectors: the set that always works and that
// the tests hold against the others. Multiply-add is two roundings here: a fused one without the
// instruction is a library call per element.
#pragma once

#include "half.h"

namespace monolane::portable {

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
static inline void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }

static inline Floats add(Floats a, Floats b) { return a + b; }
static inline Floats sub(Floats a, Floats b) { return a - b; }
static inline Floats mul(Floats a, Floats b) { return a * b; }
static inline Floats div(Floats a, Floats b) { return a / b; }
static inline Floats max(Floats a, Floats b) { return a > b ? a : b; }  // b if either is NaN
static inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
static inline Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }

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

// Integer dots: a vector holds 16 columns of one group, low or high half.
struct Codes {
  Bytes low, high;
};
static inline Bytes load_bytes(const void* p) {
  Bytes x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
static inline Ints load_ints(const int32_t* p) {
  Ints x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
static inline Codes load_codes(const Int8* p) { return {load_bytes(p), load_bytes(p + 16)}; }
static inline Codes load_nibbles(const void* p) {
  typedef uint8_t Unsigned __attribute__((vector_size(16)));
  Unsigned packed;
  std::memcpy(&packed, p, sizeof packed);
  return {__builtin_convertvector(packed & 15, Bytes), __builtin_convertvector(packed >> 4, Bytes)};
}
static inline Codes load_codes(const Int4* p) {
  const Codes biased = load_nibbles(p);
  return {biased.low - 8, biased.high - 8};
}
// The high bits of planes.h, shifted to their places; what comes in from other bytes is masked.
static inline Bytes join(Bytes low, Words high, int8_t mask) {
  Bytes bits;
  std::memcpy(&bits, &high, sizeof bits);
  return low | (bits & mask);
}
static inline Codes add_fifth_bits(Codes codes, const void* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  const Words bits{word, word, word, word};
  return {join(codes.low, bits << Words{4, 3, 2, 1}, 0x10),
          join(codes.high, bits >> Words{0, 1, 2, 3}, 0x10)};
}
static inline Codes add_upper_bits(Codes codes, const void* p) {
  uint32_t words[2];
  std::memcpy(words, p, sizeof words);
  const Words bits{words[0], words[0], words[1], words[1]};
  return {join(codes.low, bits << Words{4, 2, 4, 2}, 0x30),
          join(codes.high, bits >> Words{0, 2, 0, 2}, 0x30)};
}
static inline Floats spread(const uint16_t* scales) { return splat(f16_to_float(scales[0])); }
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
static inline Ints none() { return Ints{}; }
static inline Bytes every(int8_t byte) { return Bytes{} + byte; }
static inline Ints add(Ints a, Ints b) { return a + b; }
static inline Ints sub(Ints a, Ints b) { return a - b; }
template <int kBits>
static inline Ints doubled(Ints x) {
  return x << kBits;
}
// Signed codes need no correction for a bias.
template <class W>
static inline Ints start(Ints) {
  return Ints{};
}
template <class W>
static inline Ints dot(Ints acc, Bytes w, Bytes x) {
  typedef int8_t Eight __attribute__((vector_size(8)));
  typedef int16_t Wide __attribute__((vector_size(16)));
  const auto half = [](Bytes v, int i) {
    Eight part;
    std::memcpy(&part, reinterpret_cast<const char*>(&v) + 8 * i, sizeof part);
    return __builtin_convertvector(part, Wide);
  };
  // |w * x| <= 128 * 127, so two products fit in 16 bits.
  const Wide products = half(w, 0) * half(x, 0) + half(w, 1) * half(x, 1);
  Ints pairs;
  std::memcpy(&pairs, &products, sizeof pairs);
  return acc + ((pairs << 16) >> 16) + (pairs >> 16);
}
static inline Floats to_float(Ints x) { return __builtin_convertvector(x, Floats); }

static inline void prefetch(const void* p) { __builtin_prefetch(p); }
static inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace monolane::portable
