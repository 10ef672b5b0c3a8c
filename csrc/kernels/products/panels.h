// What the workers make of coded rows to multiply by them: panels of 16 rows, whose numbers lie
// beside each other so that an element of a vector is a row. A vector then holds four columns of 16
// rows, which meet the same four activations; a group's sum stays in its element from its first
// column to its last, and its scale is applied once: 11 vector operations for 512 products where
// columns side by side in a vector take 20, and no sum across a vector at the end of a row.
//
// First each row is brought into planes, which hold numbers of a kind:
//
//   low bits   16 bytes a group of 32 columns: columns c and c + 16 in byte c, low and high nibble;
//              of 8-bit codes 32 bytes, a column each; of codes of 2 and 3 bits 8 bytes: bit pair i
//              of byte j is column 8 i + j
//   high bits  of 5-bit codes 4 bytes a group: bit i of byte j is column 4 i + j; of 3-bit codes
//              the same; of 6-bit codes 8: the bit pairs 0 to 3 of byte j are columns j, j + 4,
//              j + 16, j + 20, of byte j + 4 the columns 8 later
//   scales     one a group, or two, those of columns 0..15 and 16..31; of mxfp4 the exponent in a
//              byte, E8M0; of nvfp4 E4M3 without a sign; of q2_k with the minimum in its high half
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
  int64_t number;   // bytes of one of them: half of that where there are two
  int64_t minimum;  // bytes of its minimum: 0, 1 or 2
  int64_t super;    // bytes of the float16 of 256 columns: of none, of scales, of minima too
  int bias;         // which codes, or the numbers that they name in a table, have too much
};

constexpr int64_t kSuper = 256;  // columns of a super-block

constexpr Planes planes_of(Format format) {
  switch (format) {
    case Format::kQ80p:
      return {32, 0, 2, 2, 0, 0, 128};
    case Format::kQ40p:
      return {16, 0, 2, 2, 0, 0, 8};
    case Format::kQ41p:
      return {16, 0, 2, 2, 2, 0, 0};
    case Format::kQ50p:
      return {16, 4, 2, 2, 0, 0, 16};
    case Format::kQ51p:
      return {16, 4, 2, 2, 2, 0, 0};
    case Format::kQ2Kp:
      return {8, 0, 2, 1, 0, 4, 0};
    case Format::kQ4Kp:
      return {16, 0, 1, 1, 1, 4, 0};
    case Format::kQ5Kp:
      return {16, 4, 1, 1, 1, 4, 0};
    case Format::kQ6Kp:
      return {16, 8, 2, 1, 0, 2, 32};
    case Format::kQ3Kp:
    case Format::kIq2p:
    case Format::kIq1p:
      return {8, 4, 2, 1, 0, 2, 64};
    case Format::kIq4Xsp:
    case Format::kIq3Sp:
    case Format::kIq3Xxsp:
      return {16, 0, 1, 1, 0, 2, 128};
    case Format::kIq4Nlp:
      return {16, 0, 2, 2, 0, 0, 128};
    case Format::kMxfp4p:
      return {16, 0, 1, 1, 0, 0, 16};
    case Format::kNvfp4p:
      return {16, 0, 2, 1, 0, 0, 16};
    default:
      return {};
  }
}

// The numbers that the codes of a format name, plus its bias, since products take unsigned numbers.
// AVX2 multiplies those of 8 bits as two of 4.
struct Numbers {
  alignas(16) uint8_t all[16];
  alignas(16) uint8_t low[16];
  alignas(16) uint8_t high[16];
  float unit;  // of which the numbers are multiples: 0.5, where the format's own are half of these
};

constexpr Numbers numbers_of(const int (&numbers)[16], int bias, float unit) {
  Numbers found{};
  for (int i = 0; i < 16; ++i) {
    const int number = numbers[i] + bias;
    found.all[i] = static_cast<uint8_t>(number);
    found.low[i] = static_cast<uint8_t>(number & 15);
    found.high[i] = static_cast<uint8_t>(number >> 4);
  }
  found.unit = unit;
  return found;
}

// What the codes of mxfp4 and nvfp4 (E2M1) stand for, doubled, so that they are whole. Of codes of
// 3 bits there are 8. All are ggml's (ggml-common.h), by which gguf.quants dequantises.
inline constexpr Numbers kE2m1Numbers =
    numbers_of({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 16, 0.5f);
inline constexpr Numbers kIq4Numbers = numbers_of(
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 128, 1.0f);
inline constexpr Numbers kIq3SNumbers =
    numbers_of({1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, 128, 1.0f);
inline constexpr Numbers kIq3XxsNumbers =
    numbers_of({2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31}, 128, 0.5f);
inline constexpr Numbers kQ3KNumbers = numbers_of({-4, -3, -2, -1, 0, 1, 2, 3}, 64, 1.0f);
inline constexpr Numbers kIq2Numbers = numbers_of({8, 25, 43, 0, -8, -25, -43, 0}, 64, 0.125f);
// -1, 0 and 1, plus an eighth, or less one.
inline constexpr Numbers kIq1Numbers = numbers_of({-7, 1, 9, 0, -9, -1, 7, 0}, 64, 0.125f);

// Whether codes are names of numbers in a table of the format's own. Not asked of `numbers_of`: to
// compilers that check for null pointers the address of a table is no constant.
constexpr bool has_numbers(Format format) {
  switch (format) {
    case Format::kMxfp4p:
    case Format::kNvfp4p:
    case Format::kIq4Nlp:
    case Format::kIq4Xsp:
    case Format::kIq3Sp:
    case Format::kIq3Xxsp:
    case Format::kQ3Kp:
    case Format::kIq2p:
    case Format::kIq1p:
      return true;
    default:
      return false;
  }
}

// Null: codes are numbers by themselves.
constexpr const Numbers* numbers_of(Format format) {
  switch (format) {
    case Format::kMxfp4p:
    case Format::kNvfp4p:
      return &kE2m1Numbers;
    case Format::kIq4Nlp:
    case Format::kIq4Xsp:
      return &kIq4Numbers;
    case Format::kIq3Sp:
      return &kIq3SNumbers;
    case Format::kIq3Xxsp:
      return &kIq3XxsNumbers;
    case Format::kQ3Kp:
      return &kQ3KNumbers;
    case Format::kIq2p:
      return &kIq2Numbers;
    case Format::kIq1p:
      return &kIq1Numbers;
    default:
      return nullptr;
  }
}

template <Format kFormat>
using OfFormat = std::integral_constant<Format, kFormat>;

// Calls run(OfFormat<format>{}) if that is a format of panels, and says whether it is. Of formats
// that differ in their numbers alone, with one for all of them.
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
    case Format::kNvfp4p:
      run(OfFormat<Format::kNvfp4p>{});
      return true;
    case Format::kIq4Nlp:
      run(OfFormat<Format::kIq4Nlp>{});
      return true;
    case Format::kIq4Xsp:
    case Format::kIq3Sp:
    case Format::kIq3Xxsp:
      run(OfFormat<Format::kIq4Xsp>{});
      return true;
    case Format::kQ3Kp:
    case Format::kIq2p:
    case Format::kIq1p:
      run(OfFormat<Format::kQ3Kp>{});
      return true;
    case Format::kQ2Kp:
      run(OfFormat<Format::kQ2Kp>{});
      return true;
    default:
      return false;
  }
}

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
  const int64_t group = p.low + p.high + p.scale + p.minimum;
  return kPanelRows * (groups * group + groups / (kSuper / kGroup) * p.super);
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
  return {high, scale, minimum, super, super + supers * 2};
}

constexpr int64_t kFineGroups = 4;  // no more than one in so many can have that many times the mean
constexpr int kFineSteps = 128;     // 255 * 127 * kGroup * kFineSteps fits 32 bits

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
  // Where sums begin, to cancel a bias: that many times the sum of the codes; for scales of 16
  // columns the sums of columns 0..15 and of 16..31.
  int32_t minus_8, minus_16, minus_128, minus_32[2];
  int32_t rest;  // bytes from here to the group of what is left over; 0: this one is not fine

  const TokenGroup& left_over() const {
    return *reinterpret_cast<const TokenGroup*>(reinterpret_cast<const char*>(this) + rest);
  }
  // Of columns 0..15 or 16..31: what minima of 16 columns are multiplied with.
  __attribute__((always_inline)) float half_sum(int half) const {
    int32_t sum = -(minus_32[half] >> 5);
    if (rest != 0) sum = kFineSteps * sum - (left_over().minus_32[half] >> 5);
    return scale * static_cast<float>(sum);
  }
};
static_assert(sizeof(TokenGroup) == 64);

}  // namespace monolane
