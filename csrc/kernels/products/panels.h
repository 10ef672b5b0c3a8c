// What the workers make of coded rows to multiply by them: panels of 16 rows, whose numbers lie
// beside each other so that an element of a vector is a row. A vector then holds four columns of 16
// rows, which meet the same four activations; a group's sum stays in its element from its first
// column to its last, and its scale is applied once: 11 vector operations for 512 products where
// columns side by side in a vector take 20, and no sum across a vector at the end of a row.
//
// First each row is brought into planes, which hold numbers of a kind:
//
//   low bits   16 bytes a group of 32 columns: columns c and c + 16 in byte c, low and high nibble;
//              of 8-bit codes 32 bytes, a column each
//   high bits  of 5-bit codes 4 bytes a group: bit i of byte j is column 4 i + j; of 6-bit codes 8:
//              the bit pairs 0 to 3 of byte j are columns j, j + 4, j + 16, j + 20, of byte j + 4
//              the columns 8 later
//   scales     one a group, or of 6-bit codes two, those of columns 0..15 and 16..31; of mxfp4 the
//              exponent in a byte, E8M0
//   minima     one a group, to be added
//   supers     of 256 columns: the float16 scale of the scales, and then those of the minima
//
// Then 16 rows are interleaved: of bits four bytes of each row in turn, of the others one number.
// A panel has them in the order in which they are used: records of a few groups (record_groups)
// with low bits, high bits, scales and minima, a plane after the other; the supers of 256 columns
// before their records. It takes the bytes of its rows in the file, but for q4_k and q5_k: their
// scales have 6 bits there and a byte here, which is 4 bytes of 144 more.
//
// Eight panels are a band, and a band is stored in blocks of 1,024 columns, of which each has the
// columns of the first panel, then those of the second, and so on. So memory is read in one stream,
// which processors follow by themselves, while a token's numbers for a block stay in the
// first-level cache. Whole panels push them out of it from 2,048 to 2,816 columns on, and a core of
// Zen 4 then reads 25 GB/s of 33 (docs/log/cpu.md, Panels in blocks). The last band has fewer
// panels, and a band's last block fewer columns.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/kernels.h"

namespace monolane {

struct Planes {
  int64_t low;      // bytes of low bits a group
  int64_t high;     // bytes of high bits a group: 0, 4 or 8
  int64_t scale;    // bytes of scales a group
  int64_t minimum;  // bytes of its minimum: 0, 1 or 2
  int64_t super;    // bytes of a float16 of 256 columns: 0 or 2; twice, where there are minima
  int bias;         // which codes have too much; of mxfp4, what they stand for in kMxfp4Numbers
};

constexpr int64_t kSuper = 256;  // columns of a super-block

constexpr Planes planes_of(Format format) {
  switch (format) {
    case Format::kQ80p:
      return {32, 0, 2, 0, 0, 128};
    case Format::kQ40p:
      return {16, 0, 2, 0, 0, 8};
    case Format::kQ41p:
      return {16, 0, 2, 2, 0, 0};
    case Format::kQ50p:
      return {16, 4, 2, 0, 0, 16};
    case Format::kQ51p:
      return {16, 4, 2, 2, 0, 0};
    case Format::kQ4Kp:
      return {16, 0, 1, 1, 2, 0};
    case Format::kQ5Kp:
      return {16, 4, 1, 1, 2, 0};
    case Format::kQ6Kp:
      return {16, 8, 2, 0, 2, 32};
    case Format::kMxfp4p:
      return {16, 0, 1, 0, 0, 16};
    default:
      return {};
  }
}

template <Format kFormat>
using OfFormat = std::integral_constant<Format, kFormat>;

// Calls run(OfFormat<format>{}) if that is a format of panels, and says whether it is.
template <class Run>
inline bool for_panels(Format format, Run&& run) {
  switch (format) {
    case Format::kQ80p:
      run(OfFormat<Format::kQ80p>{});
      return true;
    case Format::kQ40p:
      run(OfFormat<Format::kQ40p>{});
      return true;
    case Format::kQ41p:
      run(OfFormat<Format::kQ41p>{});
      return true;
    case Format::kQ50p:
      run(OfFormat<Format::kQ50p>{});
      return true;
    case Format::kQ51p:
      run(OfFormat<Format::kQ51p>{});
      return true;
    case Format::kQ4Kp:
      run(OfFormat<Format::kQ4Kp>{});
      return true;
    case Format::kQ5Kp:
      run(OfFormat<Format::kQ5Kp>{});
      return true;
    case Format::kQ6Kp:
      run(OfFormat<Format::kQ6Kp>{});
      return true;
    case Format::kMxfp4p:
      run(OfFormat<Format::kMxfp4p>{});
      return true;
    default:
      return false;
  }
}

// What the codes of mxfp4 (E2M1) stand for, doubled, so that they are whole: 0, 1, 2, 3, 4, 6, 8,
// 12, and these negated. Plus 16, since products take unsigned numbers.
alignas(16) constexpr uint8_t kMxfp4Numbers[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                   16, 15, 14, 13, 12, 10, 8,  4};

// Groups of a record: as few as end with a cache line, by which vectors of the next begin. The last
// record of a panel has what is left.
constexpr int64_t record_groups(Format format) {
  const Planes p = planes_of(format);
  int64_t groups = 1;
  while (groups * kPanelRows * (p.low + p.high + p.scale + p.minimum) % 64 != 0) groups *= 2;
  return groups;
}

constexpr int64_t kBandPanels = 8;
constexpr int64_t kBlockGroups = 1024 / kGroup;

// Bytes of so many groups of a panel: whole records, or as many as the panel has.
constexpr int64_t groups_bytes(Format format, int64_t groups) {
  const Planes p = planes_of(format);
  const int64_t supers = (p.minimum > 0 ? 2 : 1) * p.super;  // of 256 columns
  const int64_t group = p.low + p.high + p.scale + p.minimum;
  return kPanelRows * (groups * group + groups / (kSuper / kGroup) * supers);
}

// Where group g of panel p begins among all panels of a matrix: the first group of a record, and of
// 256 columns where there are supers.
constexpr int64_t group_at(Format format, int64_t panels, int64_t groups, int64_t p, int64_t g) {
  const int64_t first = p / kBandPanels * kBandPanels, begin = g / kBlockGroups * kBlockGroups;
  const int64_t band = panels - first < kBandPanels ? panels - first : kBandPanels;
  const int64_t block = groups - begin < kBlockGroups ? groups - begin : kBlockGroups;
  return first * groups_bytes(format, groups) + band * groups_bytes(format, begin) +
         (p - first) * groups_bytes(format, block) + groups_bytes(format, g - begin);
}

// Where the planes of a row begin, in bytes.
struct PlaneStarts {
  int64_t high, scale, minimum, super, super_minimum;
};
constexpr PlaneStarts plane_starts(Format format, int64_t cols) {
  const Planes p = planes_of(format);
  const int64_t groups = cols / kGroup, supers = cols / kSuper;
  const int64_t high = groups * p.low, scale = high + groups * p.high;
  const int64_t minimum = scale + groups * p.scale, super = minimum + groups * p.minimum;
  return {high, scale, minimum, super, super + supers * p.super};
}

// Activations beside them, quantised to int8: a cache line for a group of columns.
//
// An error of rounding goes with the scale, and few groups of a token have most of all squared
// scales: in SmolLM2 a twentieth has half (docs/cpu.md, Fine groups). So a group with at least
// kFineGroups times the mean square is *fine*: what its codes leave over has codes, too, in steps
// of 1 / kFineSteps, in a group behind all others of the token. A sum over a fine group is that of
// the one times kFineSteps plus that of the other, an exact integer, scaled once like any other. So
// fine groups take twice the dots of integers and no more floats, and which are fine is a matter of
// the token alone.
struct alignas(64) TokenGroup {
  int8_t codes[kGroup];
  float scale;  // of sums
  float sum;    // of the activations that the codes mean: what minima are multiplied with
  // Where sums begin, to cancel a bias: that many times the sum of the codes; for q6_k the sums of
  // columns 0..15 and of 16..31.
  int32_t minus_8, minus_16, minus_128, minus_32[2];
  int32_t rest;  // bytes from here to the group of what is left over; 0: this one is not fine

  const TokenGroup& left_over() const {
    return *reinterpret_cast<const TokenGroup*>(reinterpret_cast<const char*>(this) + rest);
  }
};
static_assert(sizeof(TokenGroup) == 64);

constexpr int64_t kFineGroups = 4;  // no more than one in so many can have that many times the mean
constexpr int kFineSteps = 128;     // 255 * 127 * kGroup * kFineSteps fits 32 bits

}  // namespace monolane
