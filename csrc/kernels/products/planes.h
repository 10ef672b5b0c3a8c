// A row of codes as planes (panels.h), before 16 of them are interleaved: where its numbers go, and
// what the functions that bring them there share. Exact: bits change their places.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/clones.h"
#include "kernels/kernels.h"
#include "kernels/products/panels.h"

#define MONOLANE_PART static inline __attribute__((always_inline))

namespace monolane {

// Where the next group of each plane goes.
struct Cursor {
  uint8_t *low, *high, *scale, *minimum, *super, *super_minimum;
};

static inline Cursor cursor_of(Format to, int64_t cols, void* row) {
  uint8_t* base = static_cast<uint8_t*>(row);
  const PlaneStarts starts = plane_starts(to, cols);
  return {base,
          base + starts.high,
          base + starts.scale,
          base + starts.minimum,
          base + starts.super,
          base + starts.super_minimum};
}

// The blocks of a row whose codes name several numbers at once: repack_codebooks.cpp.
void repack_codebook(Format from, const uint8_t* block, int64_t supers, const Cursor& to);

MONOLANE_PART void copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

MONOLANE_PART uint32_t word(const void* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Vectors of 16 bytes, which every processor has. Compilers do not find them in loops over bytes,
// which may overlap for all that they know: q4_k was made into panels at 0.6 GB/s a core.
using Words = uint32_t __attribute__((vector_size(16)));
using Octets = uint8_t __attribute__((vector_size(16)));

template <class Vector>
MONOLANE_PART Vector load(const uint8_t* p) {
  Vector x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

template <class Vector>
MONOLANE_PART void store(uint8_t* p, Vector x) {
  std::memcpy(p, &x, sizeof x);
}

// Bit c of a group's word is column c; bit i of byte j shall be column 4 i + j.
MONOLANE_PART uint32_t transpose(uint32_t bits) {
  uint32_t found = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t four = bits >> 4 * i & 15;
    found |= (four * 0x00204081u & 0x01010101u) << i;  // bit j of the four to byte j
  }
  return found;
}

// Bit `at` of byte c of 32 is column c; bit i of byte j shall be column 4 i + j.
MONOLANE_PART uint32_t gather_bits(const uint8_t* bytes, int at) {
  uint32_t found = 0;
  for (int i = 0; i < 8; ++i) found |= (word(bytes + 4 * i) >> at & 0x01010101u) << i;
  return found;
}

// Of a group's 32 bytes, column by column, the lowest two bits: bit pair i of byte j is column
// 8 i + j.
MONOLANE_PART uint64_t join_pairs(const uint64_t (&words)[4]) {
  uint64_t found = 0;
  for (int i = 0; i < 4; ++i) found |= (words[i] & 0x0303030303030303u) << 2 * i;
  return found;
}

}  // namespace monolane
