// What the workers make of GGUF's blocks to multiply by them. A block has its scales among its
// codes, and the super-blocks have codes of other groups in one byte: no vector can be loaded from
// them as it is needed. In a row of planes numbers of a kind lie side by side:
//
//   low bits   16 bytes a group of 32 columns, as in int4: columns c and c + 16 in byte c
//   high bits  of 5-bit codes 4 bytes a group: bit i of byte j is column 4 i + j; of 6-bit codes 8:
//              the bit pairs 0 to 3 of byte j are columns j, j + 4, j + 16, j + 20, of byte j + 4
//              the columns 8 later. One shift for each word of a vector puts them in place.
//   scales     a group's scale and minimum, or the scales of its two halves, side by side
//   supers     of 256 columns: the float16 scales of the scales before
//
// A row is one stretch of memory, so the prefetches of multiply.h cover all of it. It takes the
// bytes of the blocks, but for q4_k and q5_k: their scales have 6 bits in the file and a byte here,
// which is 4 bytes of 144 more. Six bits cost 8 instructions more for 64 bytes of codes.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace monolane {

struct Planes {
  int64_t high;   // bytes of high bits a group: 0, 4 or 8
  int64_t scale;  // bytes of scales (and minima) a group
  int64_t super;  // bytes that 256 columns add
  int bias;       // which codes have too much
  int minimum;    // 1: added; -1: subtracted; 0: there is none
};

constexpr int64_t kSuper = 256;  // columns of a super-block

constexpr Planes planes_of(Format format) {
  switch (format) {
    case Format::kQ41p:
      return {0, 4, 0, 0, 1};  // scale: float16 scale and minimum
    case Format::kQ50p:
      return {4, 2, 0, 16, 0};  // float16 scale
    case Format::kQ51p:
      return {4, 4, 0, 0, 1};
    case Format::kQ4Kp:
      return {0, 2, 4, 0, -1};  // bytes of scale and minimum; float16 of scales and of minima
    case Format::kQ5Kp:
      return {4, 2, 4, 0, -1};
    case Format::kQ6Kp:
      return {8, 2, 2, 32, 0};  // int8 scales of 16 columns; float16 of scales
    default:
      return {};
  }
}

constexpr bool is_planes(Format format) { return planes_of(format).scale > 0; }

// Where the planes of a row begin, in bytes.
struct PlaneStarts {
  int64_t high, scale, super;
};
constexpr PlaneStarts plane_starts(Format format, int64_t cols) {
  const Planes p = planes_of(format);
  const int64_t groups = cols / kGroup;
  return {groups * 16, groups * (16 + p.high), groups * (16 + p.high + p.scale)};
}

}  // namespace monolane
